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
from mpfm_kedro.detectors.mpfm.specification import specify_mpfm
from mpfm_kedro.experiments.measures import as_metrics
from mpfm_kedro.parameters import PrototypeParameters, RepairParameters, TrainingParameters

PROJECT = Path(__file__).parents[1]
WEIGHTS = Path("data/01_raw/weights")
SHARED = {"raw", "weights", "ingestion", "audit", "features"}
OWN = ["runs", "prototypes", "training", "scoring", "evaluation", "reporting"]
SETTINGS = ["general", "hard"]
RESULTS = {setting: Path("data/08_reporting/synthetic", setting) for setting in SETTINGS}
METRICS = {setting: Path(f"data/metrics/synthetic/{setting}.json") for setting in SETTINGS}


def each(*names: str) -> set[str]:
    """These stages in both settings."""
    return {f"{name}@{setting}" for name in names for setting in SETTINGS}


def call(folder: Path, *command: str) -> str:
    """What a command wrote; it must succeed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    name = {f"GIT_{who}_{what}": "nobody@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **name, "PATH": path, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
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


def rename(file: Path, variable: str) -> None:
    """Give a local variable another name."""
    renamed = re.sub(rf"\b{variable}\b", f"{variable}_", text := file.read_text())
    assert renamed != text
    file.write_text(renamed)


def stage_outputs(lock: Path) -> dict[str, list[dict[str, str]]]:
    """What each stage wrote, by its digests."""
    return {name: stage.get("outs", []) for name, stage in yaml.safe_load(lock.read_text())["stages"].items()}


def draw_faint_defects(source: Path) -> None:
    """Defects that are hard to find: an AUC of 1 would be equal without any reason."""
    replace(source, "rng.normal(0, 6,", "rng.normal(0, 20,")
    replace(source, "] = darkness", "] -= 30")
    replace(source, "] = 250", "] += 30")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's files as they are now, committed in a repository of their own, in the DVC test environment."""
    folder = tmp_path_factory.mktemp("dvc") / "clone"
    files = call(PROJECT, "git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in files:
        generated = name == "dvc.lock" or name.startswith("data/metrics/")
        if (PROJECT / name).is_file() and not generated:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, folder / name, follow_symlinks=False)
    replace(folder / "dvc.yaml", "- env: dvc ", "- env: dvc_test ")
    replace(folder / "dvc.yaml", "conf/base", "conf/dvc_test")
    draw_faint_defects(folder / "src/mpfm_kedro/sources/synthetic.py")
    obtain_weights("resnet18", PROJECT / WEIGHTS)
    shutil.copytree(PROJECT / WEIGHTS, folder / WEIGHTS)
    call(folder, "git", "init", "--quiet")
    assert repro(folder) == SHARED | each(*OWN)
    call(folder, "git", "add", ".")
    call(folder, "git", "commit", "--quiet", "--message=first")
    return folder


@pytest.fixture
def repository(clone: Path):
    """The clone, put back as it was committed after each test."""
    yield clone
    if call(clone, "git", "status", "--porcelain"):
        call(clone, "git", "reset", "--quiet", "--hard")
        call(clone, "dvc", "checkout", "--quiet", "--force")


def test_metrics_leave_out_what_is_undefined():
    cell = {"category": "", "n_anomalies": 3, "auc_std": 0.0, "ap_mean": 0.5, "ap_std": 0.0}
    rows = [{"method": "MPFM", "known_class": "spot", "auc_mean": 0.75} | cell]
    rows += [{"method": "MPFM", "known_class": "mean", "auc_mean": float("nan")} | cell]
    metrics = as_metrics(pd.DataFrame(rows))
    assert metrics["MPFM"]["spot"]["M3"]["auc_mean"] == 0.75
    assert "auc_mean" not in metrics["MPFM"]["mean"]["M3"]


def test_every_result_is_declared(repository: Path):
    lock = yaml.safe_load((repository / "dvc.lock").read_text())["stages"]
    declared = {repository / out["path"] for stage in lock.values() for out in stage["outs"]}
    files = [file for layer in sorted(repository.glob("data/0[4-8]*")) for file in layer.rglob("*") if file.is_file()]
    loose = [file for file in files if not declared & {file, *file.parents} and file.name != ".gitkeep"]
    assert files and not loose


def test_second_repro_does_nothing(repository: Path):
    assert repro(repository) == set()
    assert call(repository, "git", "status", "--porcelain") == ""


def test_reworded_code_fits_nothing_and_changes_no_result(repository: Path):
    """Ten variables get other names: the stages that depend on the folder run, and find everything in the cache."""
    cache, lock = repository / "data/cache/dvc", repository / "dvc.lock"
    before = {file: file.stat().st_mtime_ns for file in cache.rglob("*")}
    outputs = stage_outputs(lock)
    detectors = repository / "src/mpfm_kedro/detectors/mpfm"
    for name in ("excess", "above", "bulk", "mean_excess", "held_out", "mean_without", "variance_without"):
        rename(detectors / "calibration.py", name)
    for name in ("logit", "slope", "deviation"):
        rename(detectors / "weights.py", name)
    assert repro(repository) == each("prototypes", "training", "scoring")
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("*")} == before
    assert stage_outputs(lock) == outputs


def test_changed_plot_redraws_only(repository: Path):
    replace(repository / "src/mpfm_kedro/reports/figures.py", "anomalies found", "found anomalies")
    assert repro(repository) == each("reporting")


def test_a_new_version_of_views_makes_new_features_and_new_models(repository: Path):
    package, cache = repository / "src/mpfm_kedro", repository / "data/cache/dvc"
    before = {file.name for file in cache.glob("training-*")}
    replace(package / "images/views.py", "JITTER = 0.1", "JITTER = 0.3")
    replace(package / "images/views.py", "VERSION = 1", "VERSION = 2")
    stages = {"features", "prototypes@hard", "training@hard", "scoring@hard"}
    assert repro(repository, "scoring@hard") >= stages
    index = json.loads((repository / "data/06_models/synthetic/hard/models/index.json").read_text())
    trained = {file for name, file in index.items() if name.endswith("|training")}
    assert trained and not trained & before, "old models would score new features"


def test_changed_head_retrains_without_extraction(repository: Path):
    where = "conf/dvc_test/parameters_model.yml:repairs.normality_target"
    shown = call(repository, "dvc", "exp", "run", "--set-param", f"{where}=printed", *each("evaluation"))
    assert ran(shown) == each("runs", "training", "scoring", "evaluation")
    (changed,) = json.loads(call(repository, "dvc", "params", "diff", "--json")).values()
    changed = {name: (value["old"], value["new"]) for name, value in changed.items()}
    assert changed == {"repairs.normality_target": ("repaired", "printed")}
    differences = json.loads(call(repository, "dvc", "metrics", "diff", "--json"))
    assert set(differences) == {str(file) for file in METRICS.values()}
    auc = differences[str(METRICS["hard"])]["MPFM.mean.M3.auc_mean"]
    metrics = json.loads((repository / METRICS["hard"]).read_text())
    assert auc["new"] == metrics["MPFM"]["mean"]["M3"]["auc_mean"] != auc["old"]


def test_changed_image_size_extracts(repository: Path):
    replace(repository / "conf/dvc_test/parameters.yml", "image_size: 64", "image_size: 96")
    assert repro(repository, "prototypes@hard") == {"features", "prototypes@hard"}


def test_extracted_features_are_kept_when_the_stage_runs_again(repository: Path):
    files = {file: file.stat().st_mtime_ns for file in (repository / "data/04_feature/dvc").rglob("pooled.f32")}
    assert files and repro(repository, "--force", "--single-item", "features") == {"features"}
    assert {file: file.stat().st_mtime_ns for file in files} == files


def test_git_tracks_nothing_that_a_plain_run_writes(repository: Path):
    tracked = {Path(name) for name in call(repository, "git", "ls-files", "data").splitlines()}
    assert {file for file in tracked if file.name != ".gitkeep"} == set(METRICS.values())


def test_repetition_gives_equal_metrics(repository: Path):
    names = [METRICS["hard"], RESULTS["hard"] / "summary.csv"]
    names.append(Path("data/07_model_output/synthetic/hard/scores.parquet"))
    before = [(repository / name).read_bytes() for name in names]
    assert 0.5 < json.loads(before[0])["MPFM"]["mean"]["M3"]["auc_mean"] < 1
    shutil.rmtree(repository / "data/cache")
    shutil.rmtree(repository / "data/04_feature/dvc/synthetic/store")
    stages = ["features", "prototypes@hard", "training@hard", "scoring@hard", "evaluation@hard"]
    assert repro(repository, "--force", "--single-item", *stages) == set(stages)
    assert [(repository / name).read_bytes() for name in names] == before


def test_pull_restores_a_clone_without_computing(repository: Path, tmp_path: Path):
    second = tmp_path / "second"
    call(repository, "git", "clone", "--quiet", str(repository), str(second))
    for folder in (repository, second):
        call(folder, "dvc", "remote", "add", "--local", "--force", "--default", "nearby", str(tmp_path / "remote"))
    call(repository, "dvc", "push")
    call(second, "dvc", "pull")
    assert repro(second) == set()
    for folder in RESULTS.values():
        for name in ("summary.csv", "runs.csv", "report.html"):
            assert (second / folder / name).read_bytes() == (repository / folder / name).read_bytes()
    for name in ("data/01_raw/synthetic", "data/06_models/synthetic/hard/models"):
        assert any((second / name).iterdir())
    shown = json.loads(call(second, "dvc", "metrics", "show", "--json"))[""]["data"]
    metrics = json.loads((repository / METRICS["hard"]).read_text())
    assert shown[str(METRICS["hard"])]["data"] == metrics
    call(second, "dvc", "plots", "show", "--out", "plots")
    page = (second / "plots/index.html").read_text()
    assert all(f"synthetic_{setting}_roc_curves.png" in page for setting in SETTINGS)


def test_the_stage_of_prototypes_depends_on_every_parameter_that_its_models_read():
    types = {"prototypes": PrototypeParameters, "repairs": RepairParameters, "training": TrainingParameters}
    values = yaml.safe_load((PROJECT / "conf/base/parameters_model.yml").read_text())
    groups = {name: group(**values[name]) for name, group in types.items()}
    untrained = specify_mpfm("MPFM", **groups, trained=False)
    read = {name for piece in untrained.pieces for name in piece.parameters} - {"backbone", "n_backbones", "step_0"}
    owners = {name: group for group in types for name in values[group]}
    _, listed = yaml.safe_load((PROJECT / "dvc.yaml").read_text())["stages"]["prototypes"]["params"]
    named = [name for own in listed.values() for name in own]
    whole = {f"{group}.{name}" for group in types if group in named for name in values[group]}
    assert whole | (set(named) - set(types)) == {f"{owners[name]}.{name}" for name in read}


def test_a_dataset_with_one_class_is_reproduced_in_the_general_setting(clone: Path, tmp_path: Path):
    folder = tmp_path / "one_class"
    call(clone, "git", "clone", "--quiet", str(clone), str(folder))
    replace(folder / "dvc.yaml", "settings: [general, hard]", "settings: [general]")
    assert "general" in call(folder, "dvc", "stage", "list") and "hard" not in call(
        folder, "dvc", "stage", "list", "--name-only"
    )
