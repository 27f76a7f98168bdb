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
from fuzzing.seeds import SEEDS, damaged, set_somewhere
from mpfm_kedro.backbones.origins import read_tensors
from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.model import CARD, load_model, save_model
from mpfm_kedro.protocol.memory import read_artefact, read_details, write_artefact
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
def test_a_foreign_or_damaged_card_gives_a_model_or_is_refused(data, folder, attempt):
    own = folder.with_name("foreign")
    card = json.loads((folder / CARD).read_text())
    set_somewhere(data, card)
    for content in (json.dumps(card).encode(), damaged((folder / CARD).read_bytes(), data.draw(SEEDS))):
        (own / CARD).write_bytes(content)
        attempt(lambda: load_model(own), InputError)


@inputs(4_000)
@given(data=st.data())
def test_a_foreign_file_of_a_model_gives_a_model_or_is_refused(data, folder, attempt):
    """Somebody else's card names digests that are right."""
    own = folder.with_name("foreign")
    card = json.loads((folder / CARD).read_text())
    name = data.draw(st.sampled_from(sorted(card["files"])))
    (own / name).write_bytes(damaged((folder / name).read_bytes(), data.draw(SEEDS)))
    card["files"][name] = hashlib.sha256((own / name).read_bytes()).hexdigest()
    (own / CARD).write_text(json.dumps(card))
    attempt(lambda: load_model(own), InputError)
    shutil.copyfile(folder / name, own / name)


@inputs(100, least=4)
@given(data=st.data())
def test_an_inspector_of_a_foreign_model_works_or_is_refused(data, folder, attempt):
    own, model = folder.with_name("whole"), made_model()
    card = json.loads(json.dumps(model.card))
    set_somewhere(data, card)
    save_model(replace(model, card=card), own)
    attempt(lambda: Inspector.load(own, "cpu"), InputError)


@inputs(6_000)
@given(seed=SEEDS)
def test_a_fit_is_read_or_refused(seed, tmp_path, attempt):
    """A fit has no checksum: bits of its numbers may change, but never what is read without an error of one line."""
    whole, tensors = tmp_path / "whole.safetensors", {"a": torch.arange(6.0), "b": torch.ones(2, 2)}
    if not whole.exists():
        write_artefact(whole, Artefact(tensors, {"epochs": 3}))
    content = damaged(whole.read_bytes(), seed)
    (tmp_path / "fit.safetensors").write_bytes(content)

    def load() -> None:
        try:
            found = read_artefact(tmp_path / "fit.safetensors")
        except InputError as error:
            assert "fit.safetensors is missing or damaged" in str(error) and "\n" not in str(error)
            assert content != whole.read_bytes()
            raise
        assert found.details == read_details(tmp_path / "fit.safetensors")
        if content == whole.read_bytes():
            assert found.details == {"epochs": 3}
            assert all(torch.equal(found.tensors[name], tensors[name]) for name in tensors)
        assert len(content) >= sum(value.nbytes for value in found.tensors.values()), "numbers out of nothing"

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
            write_artefact(whole, Artefact(tensors))
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(damaged(whole.read_bytes(), seed))
    attempt(lambda: read_tensors(file), InputError)
