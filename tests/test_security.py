"""What SECURITY.md promises: nothing in a stored or foreign file is run, and no file leads out of its folder."""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from mpfm_kedro.backbones.origins import StateDictUnpickler, read_tensors
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.inspection.collection import COLUMNS, Collection
from mpfm_kedro.inspection.model import CARD, load_model
from mpfm_kedro.parameters import IngestionParameters
from mpfm_kedro.pipelines.ingestion import list_samples
from mpfm_kedro.protocol.methods import from_json

SOURCES = Path(__file__).parents[1] / "src/mpfm_kedro"
NEVER = {
    *("eval", "exec", "compile", "os.system", "os.popen", "pickle.load", "pickle.loads", "pickle.Unpickler"),
    *("joblib.load", "pd.read_pickle", "dill.load", "cloudpickle.load", "marshal.load", "marshal.loads", "shelve.open"),
    *("yaml.load", "yaml.unsafe_load", "shutil.unpack_archive", "torch.hub.load", "torch.jit.load"),
}
# by name alone, whatever they are called on
NEVER_METHODS = {"extractall", "read_pickle"}
NEEDED = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}


@cache
def calls() -> list[tuple[str, str, dict[str, object]]]:
    """Every call in the package: where, what, and its constant keywords."""
    found = []
    for file in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                constants = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
                found.append((f"{file.relative_to(SOURCES)}:{node.lineno}", ast.unparse(node.func), constants))
    return found


def test_no_call_reads_code_or_unpacks_an_archive():
    found = [
        f"{where} {name}" for where, name, _ in calls() if name in NEVER or name.rpartition(".")[2] in NEVER_METHODS
    ]
    assert found == []


def test_torch_and_numpy_read_numbers_alone():
    found = {name: [where for where, called, _ in calls() if called == name] for name in NEEDED}
    assert all(found.values())  # the names are those that the package uses
    for where, name, constants in calls():
        if name in NEEDED:
            keyword, value = NEEDED[name]
            assert constants.get(keyword) is value, where
        assert constants.get("shell") is not True, where


def test_the_one_unpickler_knows_nothing_but_tensors():
    classes = [
        (file.name, node.name)
        for file in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any("Unpickler" in ast.unparse(base) for base in node.bases)
    ]
    assert classes == [("origins.py", "StateDictUnpickler")]
    assert {module for module, _ in StateDictUnpickler.ALLOWED} == {"collections", "torch._utils", "torch.storage"}


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.file}",)


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    return tmp_path / "was_run"


def test_the_payload_works(proof):
    pickle.loads(pickle.dumps(Payload(proof)))
    assert proof.exists()


def test_a_payload_in_weights_is_not_run(tmp_path, proof):
    torch.save({"conv1.weight": Payload(proof)}, tmp_path / "weights.pth")
    with pytest.raises(InputError, match=r"weights\.pth"):
        read_tensors(tmp_path / "weights.pth")
    with pytest.raises(InputError, match="not part of a state dict"):
        StateDictUnpickler(io.BytesIO(pickle.dumps(Payload(proof)))).load()
    assert not proof.exists()


def test_a_payload_in_an_image_is_not_run(tmp_path, proof):
    np.save(tmp_path / "image.npy", np.array([[Payload(proof)]], dtype=object), allow_pickle=True)
    loader = ImageLoader("own", tmp_path, 1_000_000, tmp_path / "memory.parquet")
    assert loader.examine_crops("image.npy", [""])[0]["problem"]
    assert not proof.exists()


def test_a_table_cannot_name_a_function_to_call():
    with pytest.raises(InputError, match="no valid methods"):
        from_json(json.dumps([{"name": "one", "load": "os:system"}]))


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/hostname"])
def test_a_card_stays_in_its_folder(name, own_model_folder):
    card = json.loads((own_model_folder / CARD).read_text())
    card["files"][name] = "0" * 64
    (own_model_folder / CARD).write_text(json.dumps(card))
    with pytest.raises(InputError, match="outside of the folder"):
        load_model(own_model_folder)


def test_a_card_names_every_file_that_is_read(own_model_folder):
    card = json.loads((own_model_folder / CARD).read_text())
    del card["files"]["calibration.parquet"]
    (own_model_folder / CARD).write_text(json.dumps(card))
    with pytest.raises(InputError, match=r"does not name calibration\.parquet"):
        load_model(own_model_folder)


def test_a_collection_stays_in_its_folder(tmp_path):
    collection = Collection(tmp_path / "collection", pd.DataFrame(columns=COLUMNS))
    rows = [dict.fromkeys(COLUMNS, "") | {"file": "../secret.png", "label": 0}]
    loader = ImageLoader("own", tmp_path, 1_000_000, tmp_path / "memory.parquet")
    with pytest.raises(InputError, match=r"secret\.png"):
        collection.with_rows(rows).samples("own", "", loader)


def test_a_list_of_labels_stays_in_its_folder(tmp_path):
    folder = tmp_path / "elpv"
    folder.mkdir()
    (tmp_path / "secret.png").touch()
    (folder / "labels.csv").write_text("../secret.png 0.0 mono\n")
    loader = ImageLoader("elpv", folder, 1_000_000, tmp_path / "memory.parquet")
    parameters = IngestionParameters.model_construct(allow_partial=True)
    with pytest.raises(InputError, match=r"secret\.png' is outside of"):
        list_samples(loader, "all", parameters)
