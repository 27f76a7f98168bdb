"""`dvc repro` in a clone: which stages run, twice and after each kind of change; push and pull; equal metrics."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from mpfm_kedro.backbones.weights import obtain_weights
from mpfm_kedro.pipelines.evaluation.nodes import as_metrics

PROJECT = Path(__file__).parents[1]
WEIGHTS = Path("data/01_raw/weights")
SHARED = {"raw", "weights", "ingestion", "audit", "features"}
OWN = ["runs", "prototypes", "training", "evaluation", "reporting"]
TARGETS = ["audit", "reporting@hard"]  # each stage is a start of Kedro: the general setting is left to the real run
HARD = "data/08_reporting/made/hard"


def hard(*names: str) -> set[str]:
    return {f"{name}@hard" for name in names}


def call(folder: Path, *command: str) -> str:
    """What a command wrote; it must succeed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    name = {f"GIT_{who}_{what}": "nobody@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **name, "PATH": path, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def repro(folder: Path, *arguments: str) -> set[str]:
    """The stages that ran."""
    return ran(call(folder, "dvc", "repro", *arguments))


def ran(shown: str) -> set[str]:
    return set(re.findall(r"^Running stage '(.+)':$", shown, re.MULTILINE))


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def comment(file: Path) -> None:
    file.write_text(file.read_text() + "# a comment\n")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's files as they are now, committed in a repository of their own, in the DVC test environment."""
    folder = tmp_path_factory.mktemp("dvc") / "clone"
    files = call(PROJECT, "git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in files:
        made_here = name == "dvc.lock" or name.endswith("metrics.json")
        if (PROJECT / name).is_file() and not made_here:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, folder / name, follow_symlinks=False)
    replace(folder / "dvc.yaml", "- env: dvc ", "- env: dvc_test ")
    replace(folder / "dvc.yaml", "conf/base", "conf/dvc_test")
    obtain_weights("resnet18", PROJECT / WEIGHTS)
    shutil.copytree(PROJECT / WEIGHTS, folder / WEIGHTS)
    call(folder, "git", "init", "--quiet")
    assert repro(folder, *TARGETS) == SHARED | hard(*OWN)
    call(folder, "git", "add", ".")
    call(folder, "git", "commit", "--quiet", "--message=made")
    return folder


@pytest.fixture
def repository(clone: Path):
    """The clone, put back as it was committed after each test."""
    yield clone
    call(clone, "git", "reset", "--quiet", "--hard")
    call(clone, "dvc", "checkout", "--quiet", "--force", "--with-deps", *TARGETS)


def test_metrics_leave_out_what_is_undefined():
    cell = {"category": "", "n_anomalies": 3, "auc_std": 0.0, "ap_mean": 0.5, "ap_std": 0.0}
    rows = [{"method": "MPFM", "known_class": "spot", "auc_mean": 0.75} | cell]
    rows += [{"method": "MPFM", "known_class": "mean", "auc_mean": float("nan")} | cell]
    metrics = as_metrics(pd.DataFrame(rows))
    assert metrics["MPFM"]["spot"]["M3"]["auc_mean"] == 0.75
    assert "auc_mean" not in metrics["MPFM"]["mean"]["M3"]


def test_both_settings_have_every_stage(repository: Path):
    names = set(call(repository, "dvc", "stage", "list", "--name-only").split())
    assert names == SHARED | hard(*OWN) | {f"{name}@general" for name in OWN}


def test_every_result_is_declared(repository: Path):
    lock = yaml.safe_load((repository / "dvc.lock").read_text())["stages"]
    declared = {repository / out["path"] for stage in lock.values() for out in stage["outs"]}
    files = [file for layer in sorted(repository.glob("data/0[4-8]*")) for file in layer.rglob("*") if file.is_file()]
    loose = [file for file in files if not declared & {file, *file.parents} and file.name != ".gitkeep"]
    assert files and not loose


def test_second_repro_does_nothing(repository: Path):
    assert repro(repository, *TARGETS) == set()
    assert call(repository, "git", "status", "--porcelain") == ""


def test_comment_reruns_its_own_stage_at_most(repository: Path):
    for name in ("pipelines/datasets/nodes.py", "sources/aitex.py", "cli.py", "pipelines/features/README.md"):
        comment(repository / "src/mpfm_kedro" / name)
    assert repro(repository, *TARGETS) == set()
    comment(repository / "src/mpfm_kedro/pipelines/runs/nodes.py")
    assert repro(repository, *TARGETS) == hard("runs")


def test_changed_plot_redraws_only(repository: Path):
    replace(repository / "src/mpfm_kedro/pipelines/reporting/nodes.py", "found anomalies", "anomalies that are found")
    assert repro(repository, *TARGETS) == hard("reporting")


def test_changed_weight_retrains_without_extraction(repository: Path):
    where = "conf/dvc_test/parameters_model.yml:training.mim_weight=50.0"
    assert ran(call(repository, "dvc", "exp", "run", "--set-param", where, *TARGETS)) == hard(
        "training", "evaluation", "reporting"
    )
    assert "mim_weight" in call(repository, "dvc", "params", "diff")
    metrics = f"{HARD}/metrics.json"
    shown = json.loads(call(repository, "dvc", "metrics", "show", "--json", metrics))
    assert shown[""]["data"][metrics]["data"]["MPFM"]["mean"]["M3"]["auc_mean"] > 0.5
    replace(repository / metrics, "auc_mean", "auc_old")
    assert "auc_old" in call(repository, "dvc", "metrics", "diff", "--targets", metrics)


def test_changed_image_size_extracts(repository: Path):
    replace(repository / "conf/dvc_test/parameters.yml", "image_size: 64", "image_size: 96")
    assert repro(repository, "training@hard") == {"features"} | hard("prototypes", "training")


def test_repetition_gives_equal_metrics(repository: Path):
    results = [repository / HARD / name for name in ("metrics.json", "summary.csv")]
    scores = repository / "data/07_model_output/made/hard/scores.parquet"
    before = [file.read_bytes() for file in (*results, scores)]
    shutil.rmtree(repository / "data/cache")
    for stage in ("training@hard", "evaluation@hard"):
        assert repro(repository, "--force", "--single-item", stage) == {stage}
    assert [file.read_bytes() for file in (*results, scores)] == before


def test_pull_restores_a_clone_without_computing(repository: Path, tmp_path: Path):
    second = tmp_path / "second"
    call(repository, "git", "clone", "--quiet", str(repository), str(second))
    for folder in (repository, second):
        call(folder, "dvc", "remote", "add", "--local", "--force", "--default", "nearby", str(tmp_path / "remote"))
    call(repository, "dvc", "push", *TARGETS, "--with-deps")
    call(second, "dvc", "pull", *TARGETS, "--with-deps")
    assert repro(second, *TARGETS) == set()
    for name in ("metrics.json", "summary.csv", "runs.csv", "report.html"):
        assert (second / HARD / name).read_bytes() == (repository / HARD / name).read_bytes()
    for folder in ("data/01_raw/made", "data/06_models/made/hard/models"):
        assert any((second / folder).iterdir())
    call(second, "dvc", "plots", "show", "--out", "plots", f"{HARD}/roc_curves.png")
    assert "roc_curves" in (second / "plots/index.html").read_text()
