"""Comparison, ablation and sensitivity as a user runs them: real pipelines in the test environment."""

from __future__ import annotations

import logging
from pathlib import Path

import pandas as pd
import pytest

from mpfm_kedro.detectors.registry import baselines
from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import RepairParameters
from mpfm_kedro.protocol.methods import SIMPLE
from running import run as run_pipeline

OURS = ["MPFM", "MPFM, step 0", "MPFM, no anomaly known"]
BASELINES = ["DevNet", "FLOS", "SAOE", "MLEP", "DRA", "AHL", "DPDL"]


def run(study: str, root: Path, **parameters: object) -> Path:
    """Run a study in the test environment; returns the folder of its reports."""
    return run_pipeline(study, root, **parameters) / "08_reporting/synthetic" / study


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


def compare(root: Path) -> Path:
    """The comparison with fewer trials of the hard setting: one seed, one number of known anomalies."""
    return run("comparison", root, comparison={"hard": {"n_anomalies": [3], "n_seeds": 1}})


@pytest.fixture(scope="module")
def comparison(root: Path) -> Path:
    return compare(root)


def fits(root: Path) -> dict[str, int]:
    """Every fit, by stage and key, and when it was written."""
    memory = root / "out/06_models/synthetic"
    files = [file for file in memory.glob("*/*.safetensors") if file.parent.name != "checkpoints"]
    return {str(file.relative_to(memory)): file.stat().st_mtime_ns for file in files}


def test_every_method_is_in_every_cell_of_the_comparison(comparison: Path):
    summary = pd.read_csv(comparison / "summary.csv", keep_default_na=False)
    methods = {method.name for method in baselines()} | {*OURS, SIMPLE}
    assert methods > set(BASELINES)
    cells = summary.groupby(["setting", "known_class", "n_anomalies", "n_seeds"])["method"].agg(set)
    hard = [("hard", known, 3, 1) for known in ("mean", "scratch", "spot")]
    assert cells.to_dict() == dict.fromkeys([("general", "", 1, 2), ("general", "", 3, 2), *hard], methods)
    assert summary["auc_mean"].between(0, 1).all()


def test_the_comparison_is_written_for_people_too(comparison: Path):
    table = pd.read_csv(comparison / "table.csv")
    assert {"difference", "low", "high", "budget", "seconds"} <= set(table.columns)
    others = table[(table["method"] != "MPFM") & (table["kind"] != "published")]
    assert (others["low"] <= others["difference"]).all() and (others["difference"] <= others["high"]).all()
    for name in ("comparison.md", "report.html"):
        text = (comparison / name).read_text()
        assert all(method in text for method in [*BASELINES, *OURS])
    assert (comparison / "plot.png").stat().st_size > 10_000


def test_references_without_anomalies_score_the_same_whatever_is_known(comparison: Path, root: Path):
    scores = pd.read_parquet(root / "out/07_model_output/synthetic/comparison/scores.parquet")
    scores = scores[scores["setting"] == "general"]
    for method, supervised in (("Mahalanobis", False), ("patch-kNN", False), ("logistic regression", True)):
        own = scores[scores["method"] == method].groupby(["seed", "sample"])["score"]
        assert own.nunique().gt(1).any() == supervised, method


def test_an_interrupted_comparison_resumes_with_what_is_missing(
    comparison: Path, root: Path, caplog: pytest.LogCaptureFixture
):
    before, table = fits(root), pd.read_csv(comparison / "runs.csv")
    lost = sorted(before)[::7]
    for name in lost:
        (root / "out/06_models/synthetic" / name).unlink()
    with caplog.at_level(logging.INFO):
        compare(root)
    after = fits(root)
    assert {name for name in after if after[name] != before[name]} == set(lost)
    assert "remain" in caplog.text
    columns = ["run", "method", "auc", "ap"]
    pd.testing.assert_frame_equal(pd.read_csv(comparison / "runs.csv")[columns], table[columns])


def test_an_unknown_method_is_refused_with_the_names_of_all(root: Path):
    with pytest.raises(InputError, match=r"comparison\.methods.*Mahalonobis.*DRA"):
        run("comparison", root, comparison={"methods": ["Mahalonobis"]})


def test_ablation_has_every_part_and_every_repair(comparison: Path, root: Path):
    """In one trial, which tells every variant from MPFM."""
    table = pd.read_csv(run("ablation", root, n_seeds=1, ablation={"settings": "general"}) / "runs.csv")
    methods = set(table["method"])
    assert {*OURS, "without MPFL", "without MIMR", "without M_g", "without M_a and M_n", "MPFM as printed"} <= methods
    assert {f"{repair} printed" for repair in RepairParameters.model_fields} <= methods
    compared = pd.read_csv(comparison / "runs.csv").set_index(["run", "method"])["auc"]
    assert compared[[("general-M3-seed0", name) for name in OURS]].tolist() == (
        table.set_index("method")["auc"][OURS].tolist()
    ), "the same trial"
    scores = pd.read_parquet(root / "out/07_model_output/synthetic/ablation/scores.parquet")
    by_method = dict(tuple(scores.groupby("method")["score"]))
    unlike = {name for name in methods if (by_method[name].to_numpy() != by_method["MPFM"].to_numpy()).any()}
    assert unlike == methods - {"MPFM"}
    modes = pd.read_parquet(root / "out/07_model_output/synthetic/ablation/false_alarms.parquet")
    assert {"MPFM", "without MPFL"} <= set(modes["method"])


def test_a_part_of_the_ablation_is_a_table_of_its_own(comparison: Path, root: Path):
    """Of both settings."""
    summary = pd.read_csv(run("ablation", root, n_seeds=1, ablation={"parts": "figure_2"}) / "summary.csv")
    methods = {*OURS, "without MPFL", "without MIMR", "without MPFL and MIMR"}
    assert summary.groupby("setting")["method"].agg(set).to_dict() == {"general": methods, "hard": methods}


def test_sensitivity_varies_prototypes_and_information(comparison: Path, root: Path):
    found = run("sensitivity", root, n_seeds=1)
    table = pd.read_csv(found / "table.csv")
    assert set(table["method"]) == {"K=2", "K=4", "λ=0.1", "λ=1"}
    assert (found / "plot.png").stat().st_size > 10_000


def test_a_setting_reuses_the_models_of_the_comparison(comparison: Path, root: Path):
    before = fits(root)
    run("hard_setting", root, n_seeds=1)
    new = {name.partition("/")[0] for name in fits(root) if name not in before}
    assert new <= {"scores"}  # of other sets of test samples
    summary = pd.read_csv(root / "out/08_reporting/synthetic/hard/summary.csv").set_index(["method", "known_class"])
    study = pd.read_csv(comparison / "summary.csv", keep_default_na=False)
    study = study[(study["setting"] == "hard") & (study["n_anomalies"] == 3)].set_index(["method", "known_class"])
    shared = summary.index.intersection(study.index)  # another test has compared fewer methods since
    assert len(shared) >= 3
    assert summary["auc_mean"][shared].tolist() == pytest.approx(study["auc_mean"][shared].tolist(), abs=1e-9)
