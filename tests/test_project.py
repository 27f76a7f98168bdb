"""The whole project: real pipelines in the test environment, through KedroSession and through the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest
import torch
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from mpfm_kedro.backbones.store import FeatureStore
from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.columns import UNTRAINED
from mpfm_kedro.parameters import RepairParameters
from mpfm_kedro.protocol.memory import Entry, Memory

PROJECT = Path(__file__).parents[1]
SUMMARY = ["dataset", "category", "method", "known_class", "n_anomalies"]
SUMMARY += ["auc_mean", "auc_std", "ap_mean", "ap_std", "n_seeds"]
PIXELS = [f"{name}_{kind}" for name in ("pixel_auroc", "aupro", "pixel_f1") for kind in ("mean", "std")]
RECALLS = [f"recall_{rate}_{kind}" for rate in (1, 5) for kind in ("mean", "std")]


def run(pipeline: str, tmp_path: Path, **parameters: object) -> Path:
    """Run a pipeline in the test environment; returns the output folder."""
    bootstrap_project(PROJECT)
    roots = {"data_root": str(tmp_path / "raw"), "output_root": str(tmp_path / "out")}
    with KedroSession.create(PROJECT, env="test", runtime_params={**roots, **parameters}) as session:
        session.run(pipeline_names=[pipeline])
    return tmp_path / "out"


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("kedro")), *arguments]


def typed(pipeline: str, tmp_path: Path, *more: str, env: str = "test") -> list[str]:
    """The command line that runs a pipeline with its folders below ``tmp_path``."""
    roots = [f"data_root={tmp_path / 'raw'}", f"output_root={tmp_path / 'out'}"]
    return command("run", f"--env={env}", f"--pipelines={pipeline}", "--params=" + ",".join([*roots, *more]))


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run("hard_setting", tmp_path_factory.mktemp("hard"))


def test_hard_setting_keeps_the_contracts(hard: Path):
    summary = pd.read_csv(hard / "08_reporting/synthetic/hard/summary.csv")
    assert summary.columns.tolist() == SUMMARY + PIXELS + RECALLS
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
    for run, own in mistakes.groupby("run"):
        tested = scores[(scores["run"] == run) & (scores["method"] == "MPFM")]
        normals, anomalies = (tested["score"][tested["label"] == label] for label in (0, 1))
        assert own["score"][own["kind"] == "false alarm"].max() == normals.max()
        assert own["score"][own["kind"] == "missed"].min() == anomalies.min()


def test_links_of_the_report_open_the_files_of_the_mistakes(hard: Path):
    text = (hard / "08_reporting/synthetic/hard/report.html").read_text()
    mistakes = pd.read_parquet(hard / "07_model_output/synthetic/hard/mistakes.parquet")
    links = re.findall("<figcaption><a href=['\"]([^'\"]+)['\"]>([^<]+)</a>", text)
    assert [name for _, name in links] == mistakes["sample"].tolist()
    files = [Path(unquote(link.removeprefix("file://"))) for link, _ in links]
    assert all(file.is_file() and file.suffix == ".png" for file in files)
    assert [file.stem for file in files] == [Path(name).stem for _, name in links]


def test_no_test_sample_reaches_training_in_any_run(hard: Path):
    for runs in [pd.read_parquet(hard / "05_model_input/synthetic/hard/runs.parquet")]:
        for row in runs.to_dict("records"):
            learned = {*row["train_normals"], *row["known_anomalies"]}
            assert not learned & {*row["test_normals"], *row["test_anomalies"]}


def test_models_scores_and_metrics_have_a_version_of_one_time(hard: Path):
    names = ("models.parquet", "scores.parquet", "metrics.json")
    versions = [list((hard / "versions/synthetic/hard" / name).glob(f"*/{name}")) for name in names]
    assert [len(found) for found in versions] == [1, 1, 1]
    assert len({found[0].parent.name for found in versions}) == 1


def test_pictures_and_page_are_there(hard: Path):
    folder = hard / "08_reporting/synthetic/hard"
    for name in ("roc_curves", "score_histograms", "loss_curves", "prototype_usage"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "MPFM on synthetic" in (folder / "report.html").read_text()
    assert (hard / "08_reporting/synthetic/contact_sheet.png").exists()


def test_a_rerun_elsewhere_gives_equal_bytes(hard: Path, tmp_path: Path):
    """Fits, tables and metrics, though images, outputs and times are others."""
    again = run("hard_setting", tmp_path)
    names = ["06_models/synthetic/*/*.safetensors", "07_model_output/synthetic/hard/scores.parquet"]
    names += ["08_reporting/synthetic/hard/*.csv", "08_reporting/synthetic/hard/metrics.json"]
    first, second = ({str(f.relative_to(r)): f.read_bytes() for n in names for f in r.glob(n)} for r in (hard, again))
    assert len(first) > 20 and first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_general_setting_with_one_anomaly(tmp_path: Path):
    out = run("general_setting", tmp_path, n_anomalies=1, n_seeds=1)
    summary = pd.read_csv(out / "08_reporting/synthetic/general/summary.csv", keep_default_na=False)
    assert summary["known_class"].tolist() == [""] * 3
    assert summary["n_anomalies"].tolist() == [1] * 3


@pytest.mark.parametrize("pipeline", ["hard_setting", "fit"])
def test_the_configuration_of_the_paper_runs(pipeline: str, tmp_path: Path):
    tiny = ["dataset=synthetic", "image_size=64", "n_seeds=1", "n_anomalies=3", "compute.processes=1"]
    tiny += ["features.workers=0", "prototypes.n_prototypes=4", "prototypes.n_patch_prototypes=20"]
    tiny += ["training.epochs=2", "training.iterations_per_epoch=4", "training.hidden=8"]
    found = subprocess.run(
        typed(pipeline, tmp_path, *tiny, env="paper"), cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-2000:]
    out = tmp_path / "out"
    if pipeline == "fit":
        card = json.loads((out / "06_models/synthetic/production/model/card.json").read_text())
        assert card["data"]["anomalies"] == 24 and card["threshold"]["n_normals"] == 48
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
        ("hard_setting", {"dataset": "synthetik"}, "Did you mean 'synthetic'"),
        ("hard_setting", {"known_class": "dent"}, "known_class"),
        ("hard_setting", {"n_anomalies": 13}, "has 12"),
        ("hard_setting", {"backbone": "resnet81"}, "resnet"),
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


def test_bf16_on_a_cpu_that_dies_of_it_is_refused_before_any_image_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("mpfm_kedro.hooks.IN_BF16", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(InputError, match=r"features.precision' = 'bf16'.*exit code -4.*use fp32"):
        run("features", tmp_path, features={"precision": "bf16"})
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("backbone", ["resnet81", ["resnet18", "dinov2_vits41"]])
def test_unknown_backbone_is_refused_before_any_image_is_read(backbone, tmp_path):
    with pytest.raises(InputError, match="nearest names are"):
        run("features", tmp_path, backbone=backbone)
    assert not list(tmp_path.rglob("*.parquet"))


def test_backbones_side_by_side_reach_the_results(hard: Path, tmp_path: Path):
    out = run("hard_setting", tmp_path, n_seeds=1, backbone=["resnet18", "dinov2_vits14"])
    stores = FeatureStore(out / "04_feature/store").overview()
    assert sorted(zip(stores["backbone"], stores["image_size"], strict=True)) == [
        ("dinov2_vits14", 70),
        ("resnet18", 64),
    ]
    assert set(stores["store"]) & set(FeatureStore(hard / "04_feature/store").overview()["store"])
    assert pd.read_csv(out / "08_reporting/synthetic/hard/summary.csv")["auc_mean"].between(0, 1).all()


def test_output_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "out").write_text("a file where a folder should be")
    with pytest.raises(InputError, match="out"):
        run("ingestion", tmp_path)


def test_command_line_runs_the_hard_setting_by_both_names(tmp_path: Path):
    shown = subprocess.run(typed("hard_setting", tmp_path, "n_seeds=1"), cwd=PROJECT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "mean" in shown.stderr and "± " in shown.stderr  # the summary table at the end
    assert f"Report: {tmp_path}/out/08_reporting/synthetic/hard/report.html" in shown.stderr
    assert "Running node" not in shown.stderr
    assert f"compared with '{UNTRAINED}'" in shown.stderr  # what known anomalies add
    assert "WARNING Train and test share" in shown.stderr, "warnings stay visible"
    other = [part.replace("--pipelines=", "--pipeline=") for part in typed("hard_setting", tmp_path, "n_seeds=1")]
    again = subprocess.run(other, cwd=PROJECT, capture_output=True, text=True)
    assert again.returncode == 0


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
    given[3] = pipeline
    ended = subprocess.run(given, cwd=PROJECT, capture_output=True, text=True)
    assert ended.returncode == 1
    assert (ended.stdout + ended.stderr).count(message) == 1
    errors = [line for line in ended.stderr.splitlines() if " INFO " not in line and " WARNING " not in line]
    assert len(errors) == 1 and errors[0].startswith("Error: ")


@pytest.mark.parametrize("content", [{"a": Path("code")}, {"conv1.weight": 1.0}])
def test_unusable_weights_are_refused_before_any_image_is_read(content: object, tmp_path: Path):
    torch.save(content, tmp_path / "own.pth")
    with pytest.raises(InputError, match=r"own\.pth"):
        run("features", tmp_path, features={"weights_file": str(tmp_path / "own.pth")})
    assert not list(tmp_path.rglob("*.parquet"))


def test_killed_run_goes_on_and_gives_the_same_result(tmp_path: Path):
    """Kill in the middle of extraction and of training, each as soon as there is something to go on from."""
    slow = "training.epochs=40"
    # a process of its own, as the killed ones: another number of threads rounds otherwise
    calm = typed("hard_setting", tmp_path / "calm", "n_seeds=1", slow)
    assert subprocess.run(calm, cwd=PROJECT, capture_output=True).returncode == 0
    store, memory = tmp_path / "out/04_feature/store", tmp_path / "out/06_models/synthetic"
    _kill_when(typed("hard_setting", tmp_path, "n_seeds=1", slow), lambda: _lines(store) >= 16)
    rows = _lines(store)
    assert 16 <= rows < 108  # interrupted before the end
    _kill_when(
        typed("hard_setting", tmp_path, "n_seeds=1", slow), lambda: any(memory.glob("checkpoints/*.safetensors"))
    )
    assert not any(memory.glob("training/*.safetensors"))
    final = subprocess.run(
        typed("hard_setting", tmp_path, "n_seeds=1", slow), cwd=PROJECT, capture_output=True, text=True
    )
    assert final.returncode == 0, final.stderr
    name = "07_model_output/synthetic/hard/scores.parquet"
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "calm/out" / name), pd.read_parquet(tmp_path / "out" / name)
    )


def _lines(store: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in store.glob("*/*.keys.txt"))


def _kill_when(arguments: list[str], reached) -> None:
    process = subprocess.Popen(
        arguments, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not reached():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
