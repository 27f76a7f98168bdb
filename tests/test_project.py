"""The whole project: real pipelines in the test environment, through KedroSession and through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

from mpfm_kedro.backbones.store import FeatureStore
from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.columns import UNTRAINED
from mpfm_kedro.parameters import RepairParameters
from mpfm_kedro.protocol.memory import Entry, Memory
from running import kedro, run, typed

SUMMARY = ["dataset", "category", "method", "known_class", "n_anomalies"]
SUMMARY += ["auc_mean", "auc_std", "ap_mean", "ap_std", "n_seeds"]
PIXELS = [f"{name}_{kind}" for name in ("pixel_auroc", "aupro", "pixel_f1") for kind in ("mean", "std")]
RECALLS = [f"recall_{rate}_{kind}" for rate in (1, 5) for kind in ("mean", "std")]


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run("hard_setting", tmp_path_factory.mktemp("hard"))


def test_hard_setting_keeps_the_contracts(hard: Path):
    summary = pd.read_csv(hard / "08_reporting/synthetic/hard/summary.csv")
    assert summary.columns[: len(SUMMARY)].tolist() == SUMMARY and {*PIXELS, *RECALLS} <= {*summary.columns}
    assert summary[PIXELS].notna().all().all()  # the synthetic images have masks
    assert set(summary["known_class"]) == {"spot", "scratch", "mean"}
    assert set(summary["method"]) == {"MPFM", "MPFM, step 0", "MPFM, no anomaly known"}
    assert summary["auc_mean"].between(0, 1).all()
    runs = pd.read_csv(hard / "08_reporting/synthetic/hard/runs.csv")
    assert len(runs) == 2 * 2 * 3  # classes x seeds x methods
    assert {"run", "method", "seed", "auc", "ap"} <= set(runs.columns)
    scores = pd.read_parquet(hard / "07_model_output/synthetic/hard/scores.parquet")
    parts = ["score_g", "score_a", "score_r", "score_n"]
    assert {"run", "method", "sample", "label", "score", *parts} <= set(scores.columns)
    assert scores[["score", *parts]].notna().all().all()
    for row in pd.read_parquet(hard / "05_model_input/synthetic/hard/runs.parquet").to_dict("records"):
        learned = {*row["train_normals"], *row["known_anomalies"]}
        assert not learned & {*row["test_normals"], *row["test_anomalies"]}
    for name in ("roc_curves", "score_histograms", "loss_curves", "prototype_usage", "sampled_features"):
        assert (hard / f"08_reporting/synthetic/hard/{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_shows_misses_and_false_alarms(hard: Path):
    reporting = hard / "08_reporting/synthetic/hard"
    points = pd.read_parquet(hard / "07_model_output/synthetic/hard/operating_points.parquet")
    assert points["known_class"].tolist() == ["scratch", "spot"]
    assert all(points[name].between(0, 1).all() for name in ("guaranteed", "false_alarms", "recall"))
    mistakes = pd.read_parquet(hard / "07_model_output/synthetic/hard/mistakes.parquet")
    scores = pd.read_parquet(hard / "07_model_output/synthetic/hard/scores.parquet")
    page = (reporting / "report.html").read_text()
    assert page.count("<figcaption><a href=") == len(mistakes) == 2 * (4 + 4)  # of each class: normals, the other class
    assert page.count("data:image/jpeg") == len(mistakes) + 4  # and typical normals of each group
    assert mistakes["likeness"].between(0, 1, inclusive="neither").all()
    links = re.findall("<figcaption><a href=['\"]([^'\"]+)['\"]>([^<]+)</a>", page)
    assert [name for _, name in links] == mistakes["sample"].tolist()
    files = [Path(unquote(link.removeprefix("file://"))) for link, _ in links]
    assert all(file.is_file() and file.suffix == ".png" for file in files), "links open the images"
    assert [file.stem for file in files] == [Path(name).stem for _, name in links]
    for name, own in mistakes.groupby("run"):
        tested = scores[(scores["run"] == name) & (scores["method"] == "MPFM")]
        normals, anomalies = (tested["score"][tested["label"] == label] for label in (0, 1))
        assert own["score"][own["kind"] == "false alarm"].max() == normals.max()
        assert own["score"][own["kind"] == "missed"].min() == anomalies.min()


def test_models_scores_and_metrics_have_a_version_of_one_time(hard: Path):
    names = ("models.parquet", "scores.parquet", "metrics.json")
    versions = [list((hard / "versions/synthetic/hard" / name).glob(f"*/{name}")) for name in names]
    assert [len(found) for found in versions] == [1, 1, 1]
    assert len({found[0].parent.name for found in versions}) == 1


def test_a_rerun_elsewhere_by_the_command_line_gives_equal_bytes_and_says_what_matters(hard: Path, tmp_path: Path):
    """All but seconds, dates and links to images, in costs, report and mistakes."""
    shown = kedro(*typed("hard_setting", tmp_path))
    assert shown.returncode == 0, shown.stderr
    names = ["05_*/*/hard/*", "06_*/*/*/*.safetensors", "06_*/*/hard/*", "07_*/*/hard/[!cm]*", "08_*/*/hard/*[!l]"]
    first, second = (
        {str(f.relative_to(r)): f.read_bytes() for n in names for f in r.glob(n)} for r in (hard, tmp_path / "out")
    )
    assert len(first) > 20 and first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    assert "mean" in shown.stderr and "± " in shown.stderr  # the summary table at the end
    assert f"Report: {tmp_path}/out/08_reporting/synthetic/hard/report.html" in shown.stderr
    assert "Running node" not in shown.stderr
    assert f"compared with '{UNTRAINED}'" in shown.stderr  # what known anomalies add
    assert "WARNING Train and test share" in shown.stderr, "warnings stay visible"


@pytest.mark.parametrize("pipeline", ["hard_setting", "comparison", "fit"])
def test_the_configuration_of_the_paper_runs(pipeline: str, tmp_path: Path):
    tiny = ["dataset=synthetic", "image_size=64", "n_seeds=1", "known_class=spot", "n_anomalies=3"]
    tiny += ["compute.processes=1", "features.workers=0", "prototypes.n_prototypes=4"]
    tiny += ["prototypes.n_patch_prototypes=20", "training.epochs=2", "training.iterations_per_epoch=4"]
    tiny += ["training.hidden=8", "comparison.methods=MPFM", "comparison.settings=hard", "comparison.n_anomalies=3"]
    found = kedro(*typed(pipeline, tmp_path, *tiny, env="paper"))
    assert found.returncode == 0, found.stderr[-2000:]
    out = tmp_path / "out"
    if pipeline == "fit":
        card = json.loads((out / "06_models/synthetic/production/model/card.json").read_text())
        assert card["data"]["anomalies"] == 24 and card["threshold"]["n_normals"] == 48
    elif pipeline == "comparison":
        rows = (out / "08_reporting/synthetic/comparison/comparison.md").read_text()
        assert "| MPFM as printed |" in rows and "| MPFM |" not in rows
    else:
        summary = pd.read_csv(out / "08_reporting/synthetic/hard/summary.csv")
        assert set(summary["method"]) == {"MPFM as printed"} and summary["auc_mean"].between(0, 1).all()
        trial = pd.read_parquet(out / "06_models/synthetic/hard/models.parquet").iloc[0]
        memory = Memory(out / "06_models/synthetic")
        stages = ("training", "calibration")
        training, calibration = (memory.details(Entry(stage, trial[stage]))["parameters"] for stage in stages)
        assert {training[name] for name in RepairParameters.model_fields if name != "fusion"} == {"printed"}
        assert calibration["fusion"] == "printed"


@pytest.mark.parametrize(
    ("pipeline", "parameters", "message"),
    [
        ("hard_setting", {"dataset": "synthetik"}, "did you mean 'synthetic'"),
        ("hard_setting", {"known_class": "dent"}, "known_class"),
        ("hard_setting", {"n_anomalies": 13}, "has 12"),
        ("features", {"backbone": ["resnet18", "dinov2_vits41"]}, "nearest names are"),
        ("hard_setting", {"features": {"layers": ["layer9"]}}, "layer9"),
        ("hard_setting", {"device": "cuda"}, "cuda"),
        ("hard_setting", {"features": {"weights_file": "/no.pth"}}, r"weights_file.*/no\.pth"),
        ("general_setting", {"dataset": "folder", "data_root": "/nowhere"}, "data_root /nowhere does not exist"),
        ("hard_setting", {"dataset": "brainmri"}, "brainmri"),
    ],
)
def test_bad_input_is_refused_with_a_clear_message(pipeline, parameters, message, tmp_path):
    with pytest.raises(InputError, match=message):
        run(pipeline, tmp_path, **parameters)
    assert not list(tmp_path.rglob("features.parquet"))


def test_bf16_on_a_cpu_that_dies_of_it_is_refused_before_any_image_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("mpfm_kedro.hooks.IN_BF16", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(InputError, match=r"features.precision' = 'bf16'.*exit code -4.*use fp32"):
        run("features", tmp_path, features={"precision": "bf16"})
    assert not list(tmp_path.rglob("*.parquet"))


def test_backbones_side_by_side_reach_the_results(hard: Path, tmp_path: Path):
    out = run("hard_setting", tmp_path, n_seeds=1, known_class="spot", backbone=["resnet18", "dinov2_vits14"])
    stores = FeatureStore(out / "04_feature/store").overview()
    sizes = dict(zip(stores["backbone"], stores["image_size"], strict=True))
    assert sizes == {"dinov2_vits14": 70, "resnet18": 64} and len(stores) == 2
    assert set(stores["store"]) & set(FeatureStore(hard / "04_feature/store").overview()["store"])
    assert pd.read_csv(out / "08_reporting/synthetic/hard/summary.csv")["auc_mean"].between(0, 1).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pipelines=hard_setting", "known_class=dent"], "Parameter 'known_class' = 'dent'"),
        (["--pipeline=hard_settin"], "There is no pipeline 'hard_settin': did you mean 'hard_setting'?"),
    ],
)
def test_an_error_is_one_line_without_advice(arguments: list[str], message: str, tmp_path: Path):
    """In a node, which Kedro reports with the node and how to resume, and before any."""
    pipeline, *more = arguments
    given = typed("", tmp_path, *more)
    given[2] = pipeline
    ended = kedro(*given)
    assert ended.returncode == 1
    assert (ended.stdout + ended.stderr).count(message) == 1
    errors = [line for line in ended.stderr.splitlines() if " INFO " not in line and " WARNING " not in line]
    assert len(errors) == 1 and errors[0].startswith("Error: ")
