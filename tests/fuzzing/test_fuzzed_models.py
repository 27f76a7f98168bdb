"""Model folders, pieces and weights of anybody: a valid model or one clear error, nothing else."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuzzing.conftest import inputs
from fuzzing.seeds import JSON, SEEDS, damaged, set_somewhere
from mpfm_kedro.backbones.origins import read_tensors
from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.cache import ArtefactFile, load_folder
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.model import CARD, load_model, save_model
from production_models import made_model

pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow warns of every odd tag


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder; its backbone is cut to a few tensors, so that digests cost little."""
    model = made_model()
    few = dict(list(model.backbones[0].items())[:2])
    made = tmp_path_factory.mktemp("model") / "model"
    save_model(replace(model, backbones=[few]), made)
    shutil.copytree(made, made.with_name("foreign"))
    return made


@inputs(4_000)
@given(data=st.data())
def test_a_foreign_card_gives_a_model_or_is_refused(data, folder, attempt):
    """The card of somebody else is no damage: it has no checksum."""
    own = folder.with_name("foreign")
    card = json.loads((folder / CARD).read_text())
    del card["checksum"]
    set_somewhere(data, card)
    (own / CARD).write_text(json.dumps(card))
    attempt(lambda: load_model(own), InputError)


@inputs(4_000)
@given(data=st.data())
def test_a_foreign_file_of_a_model_gives_a_model_or_is_refused(data, folder, attempt):
    """Somebody else's card names digests that are right."""
    own = folder.with_name("foreign")
    card = json.loads((folder / CARD).read_text())
    del card["checksum"]
    name = data.draw(st.sampled_from(sorted(card["files"])))
    (own / name).write_bytes(damaged((folder / name).read_bytes(), data.draw(SEEDS)))
    card["files"][name] = hashlib.sha256((own / name).read_bytes()).hexdigest()
    (own / CARD).write_text(json.dumps(card))
    attempt(lambda: load_model(own), InputError)
    shutil.copyfile(folder / name, own / name)


@inputs(3_000)
@given(seed=SEEDS)
def test_a_damaged_card_is_refused(seed, folder, attempt):
    own = folder.with_name("foreign")
    (own / CARD).write_bytes(damaged((folder / CARD).read_bytes(), seed))
    expected = json.loads((folder / CARD).read_text())

    def load() -> None:
        assert load_model(own).card | {"checksum": expected["checksum"]} == expected

    attempt(load, InputError)


@inputs(100)
@given(data=st.data())
def test_an_inspector_of_a_foreign_model_works_or_is_refused(data, folder, attempt):
    own, model = folder.with_name("whole"), made_model()
    card = json.loads(json.dumps(model.card))
    set_somewhere(data, card)
    save_model(replace(model, card=card), own)
    attempt(lambda: Inspector.load(own, "cpu"), InputError)


@inputs(6_000)
@given(seed=SEEDS)
def test_a_piece_is_read_as_it_was_written_or_refused(seed, tmp_path, attempt):
    whole, piece = ArtefactFile(tmp_path / "whole.safetensors"), {"a": torch.arange(6.0), "b": torch.ones(2, 2)}
    if not whole.exists():
        whole.save(Artefact(piece, {"seconds": 1.5}))
    file = tmp_path / "piece.safetensors"
    file.write_bytes(damaged(whole.path.read_bytes(), seed))

    def load() -> None:
        found = ArtefactFile(file).load()
        assert found.details == {"seconds": 1.5}
        assert found.tensors.keys() == piece.keys()
        assert all(torch.equal(found.tensors[name], piece[name]) for name in piece)

    attempt(load, InputError)


@inputs(2_000)
@given(index=JSON | st.dictionaries(st.text(max_size=5), st.sampled_from(["../x", "/etc/passwd", "..", "a"])))
def test_an_index_of_models_cannot_lead_out_of_its_folder(index, tmp_path, attempt):
    (tmp_path / "a").touch()
    (tmp_path / "index.json").write_text(json.dumps(index))

    def load() -> None:
        assert all(file.path == tmp_path / "a" for file in load_folder(tmp_path).values())

    attempt(load, InputError)


@inputs(3_000)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@given(seed=SEEDS)
def test_weights_are_read_or_refused(suffix, seed, tmp_path, attempt):
    tensors = {"conv1.weight": torch.ones(2, 3), "bn1.bias": torch.zeros(4)}
    whole = tmp_path / f"whole{suffix}"
    if not whole.exists():
        if suffix == ".pth":
            torch.save(tensors, whole)
        else:
            ArtefactFile(whole).save(Artefact(tensors))
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(damaged(whole.read_bytes(), seed))
    attempt(lambda: read_tensors(file), InputError)
