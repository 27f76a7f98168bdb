"""What a stored model says of its origin: code, parameters, images and weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from mpfm_kedro import provenance
from mpfm_kedro.experiments.cache import RunCache
from mpfm_kedro.backbones.store import KEY, Features, FeatureSpec, FeatureStore
from mpfm_kedro.parameters import ComputeParameters, PrototypeParameters, RepairParameters, TrainingParameters
from mpfm_kedro.pipelines.prototypes.nodes import initialise_prototypes
from mpfm_kedro.pipelines.training.nodes import train_models
from mpfm_kedro.provenance import BASELINES, METHOD, code_digest, code_revision

CONF = Path(__file__).parents[2] / "conf" / "base"
BASE = yaml.safe_load((CONF / "parameters_model.yml").read_text())
SPEC = FeatureSpec("resnet18", "digest of the weights", 64, ("layer4",), ("layer4",), ("mean",), 6, (4, 2, 2))
PROTOTYPES = PrototypeParameters(n_prototypes=2, max_modes=1, min_mode_size=8)
REPAIRS = RepairParameters(**BASE["repairs"])
TRAINING = TrainingParameters(**(BASE["training"] | {"epochs": 1, "iterations_per_epoch": 1, "hidden": 8}))
COMPUTE = ComputeParameters(processes=1, dask_scheduler=None)
RUN = {"run": "one", "dataset": "made", "category": "", "setting": "general", "known_class": "", "n_anomalies": 2}
RUN |= {"seed": 0, "train_normals": [f"good/{i}" for i in range(30)], "known_anomalies": ["dent/0", "dent/1"]}
RUN |= {"test_normals": ["good/30"], "test_anomalies": ["dent/2"]}


def features(folder: Path, changed: str) -> Features:
    """Features of all samples; the image of one of them is another one."""
    names = [f"good/{i}" for i in range(31)] + [f"dent/{i}" for i in range(3)]
    planned = [(name, "original") for name in names] + [(name, "cutmix-0") for name in names if "good" in name]
    index = pd.DataFrame(planned, columns=["sample_id", "view"]).assign(crop="")
    index["content_hash"] = index["sample_id"].where(index["sample_id"] != changed, "another")
    index["row"] = range(len(index))
    rng = np.random.default_rng(0)
    store = FeatureStore(folder).open(SPEC)
    with store.writing() as writer:
        keys = index[KEY].agg("|".join, axis=1).tolist()
        writer.append(keys, rng.normal(size=(len(index), 6)), rng.normal(size=(len(index), 4, 2, 2)))
    return Features(index, FeatureStore(folder).open(SPEC))


@pytest.fixture
def details(tmp_path: Path):
    """The details of the initial and the trained model, by the sample whose image is another one."""

    def make(changed: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
        folder = tmp_path / (changed.replace("/", "-") or "as it was")
        runs, made, cache = pd.DataFrame([RUN]), features(folder / "store", changed), RunCache(folder / "cache")
        initial = initialise_prototypes(runs, made, cache, PROTOTYPES, REPAIRS, TRAINING, COMPUTE)
        models = train_models(runs, made, initial, cache, "cpu", TRAINING, REPAIRS, COMPUTE)
        return initial["one"].details(), models["one"].details()

    return make


def test_models_name_code_parameters_and_weights(details):
    for found in details():
        assert found["revision"] == code_revision()
        assert (found["weights"], found["features"]) == (SPEC.weights_digest, SPEC.digest)
        assert found["prototypes"] == PROTOTYPES.model_dump()
        assert found["training"]["hidden"] == 8
        assert found["repairs"]["fusion"] == "repaired"
    assert found["training"] == TRAINING.model_dump()
    assert found["repairs"] == REPAIRS.model_dump()


def test_models_name_the_images_that_they_learned_from(details):
    initial, trained = (found["data"] for found in details())
    learned = [found["data"] for found in details("good/0")]
    assert learned[0] != initial and learned[1] != trained
    known = [found["data"] for found in details("dent/0")]
    assert known[0] == initial and known[1] != trained
    for tested in ("good/30", "dent/2"):
        assert [found["data"] for found in details(tested)] == [initial, trained]


@pytest.fixture
def digests(tmp_path, monkeypatch):
    """The digests of the method and of the baselines after a change of one file of a copy of the package."""
    package = tmp_path / "mpfm_kedro"
    shutil.copytree(provenance.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "PACKAGE", package)

    def changed(file: str | None = None) -> tuple[str, str]:
        code = (package / file).read_text() if file else ""
        if file:
            (package / file).write_text(code + "\n# another line\n")
        found = code_digest.__wrapped__(METHOD), code_digest.__wrapped__(BASELINES)
        if file:
            (package / file).write_text(code)
        return found

    return changed


def test_a_change_of_the_training_leaves_the_baselines_alone(digests):
    method, baselines = digests()
    for file in ("model/trainer.py", "model/calibration.py", "pipelines/prototypes/nodes.py"):
        found = digests(file)
        assert found[0] != method and found[1] == baselines


def test_baselines_depend_on_what_they_import_and_on_what_that_imports(digests):
    method, baselines = digests()
    for file in ("model/mode_fitting.py", "model/modes.py", "model/patches.py", "pipelines/training/run_data.py"):
        found = digests(file)
        assert found[0] != method and found[1] != baselines
    assert digests("baselines/dra.py")[1] != baselines


def test_no_study_is_computed_again_because_a_report_changed(digests):
    assert digests("pipelines/comparison/tables.py") == digests()
