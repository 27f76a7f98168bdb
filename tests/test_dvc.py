"""`dvc repro` in a clone: which stages run, twice and after each kind of change; push and pull; equal metrics."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath

import pandas as pd
import pytest
import yaml

from mpfm_kedro.backbones.weights import obtain_weights
from mpfm_kedro.parameters import COPIES
from mpfm_kedro.pipelines.studies import create_setting

PROJECT = Path(__file__).parents[1]
WEIGHTS = Path("data/01_raw/weights")
SHARED = {"raw", "weights", "ingestion", "audit", "features"}
OWN = ["runs", "prototypes", "training", "calibration", "scoring", "evaluation", "reporting"]
SETTINGS = ["general", "hard"]
RESULTS = {setting: Path("data/08_reporting/synthetic", setting) for setting in SETTINGS}
MODELS, STORE = Path("data/06_models/dvc/synthetic"), Path("data/04_feature/dvc/synthetic/store")
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


def test_every_result_is_declared(repository: Path):
    lock = yaml.safe_load((repository / "dvc.lock").read_text())["stages"]
    declared = {repository / out["path"] for stage in lock.values() for out in stage["outs"]}
    files = [file for layer in sorted(repository.glob("data/0[4-8]*")) for file in layer.rglob("*") if file.is_file()]
    loose = [file for file in files if not declared & {file, *file.parents} and file.name != ".gitkeep"]
    loose = [file for file in loose if "log" not in file.parts]  # when fits were made: no result
    assert files and not loose


def test_second_repro_does_nothing(repository: Path):
    assert repro(repository) == set()
    assert call(repository, "git", "status", "--porcelain") == ""


def fits(repository: Path) -> dict[Path, int]:
    """When each fit and each table of scores was computed, by its log."""
    return {file: file.stat().st_mtime_ns for file in (repository / MODELS).glob("*/log/*/*.json")}


def feature_parts(repository: Path) -> dict[Path, int]:
    """When each part of the feature store was written."""
    return {file: file.stat().st_mtime_ns for file in (repository / STORE).glob("*/[!.]*.keys.txt")}


def test_reworded_code_fits_nothing_and_changes_no_result(repository: Path):
    """Ten variables get other names: the stages that depend on their folders run, and find all that was computed."""
    lock, before, parts = repository / "dvc.lock", fits(repository), feature_parts(repository)
    outputs = stage_outputs(lock)
    for name in ("excess", "above", "bulk", "mean_excess", "logit", "slope"):
        rename(repository / "src/mpfm_kedro/detectors/mpfm/calibration.py", name)
    for name in ("coarsest", "pairs", "uses", "convolution"):
        rename(repository / "src/mpfm_kedro/backbones/backbone.py", name)
    fitted = each("prototypes", "training", "calibration", "scoring")
    assert repro(repository) == {"weights", "features"} | fitted
    assert parts and feature_parts(repository) == parts
    assert before and fits(repository) == before
    assert stage_outputs(lock) == outputs


def test_a_new_version_of_views_makes_new_features_and_new_models(repository: Path):
    package, before = repository / "src/mpfm_kedro", {file.stem for file in fits(repository)}
    replace(package / "images/views.py", "JITTER = 0.1", "JITTER = 0.3")
    replace(package / "images/views.py", "VERSION = 1", "VERSION = 2")
    stages = {"features", "prototypes@hard", "training@hard", "calibration@hard", "scoring@hard"}
    assert repro(repository, "scoring@hard") >= stages
    trained = set(pd.read_parquet(repository / MODELS / "hard/trained.parquet")["training"]) - {""}
    assert trained and not trained & before, "old models would score new features"


def test_changed_head_retrains_without_extraction(repository: Path):
    where = "conf/dvc_test/parameters_model.yml:repairs.normality_target"
    shown = call(repository, "dvc", "exp", "run", "--set-param", f"{where}=printed", *each("evaluation"))
    assert ran(shown) == each("prototypes", "training", "calibration", "scoring", "evaluation")
    (changed,) = json.loads(call(repository, "dvc", "params", "diff", "--json")).values()
    changed = {name: (value["old"], value["new"]) for name, value in changed.items()}
    assert changed == {"repairs.normality_target": ("repaired", "printed")}
    differences = json.loads(call(repository, "dvc", "metrics", "diff", "--json"))
    assert set(differences) == {str(file) for file in METRICS.values()}
    metrics = json.loads((repository / METRICS["hard"]).read_text())
    for name, value in differences[str(METRICS["hard"])].items():
        assert value["new"] == metrics[name] != value["old"]


def test_an_interrupted_repro_keeps_the_features_that_it_has(repository: Path):
    replace(repository / "src/mpfm_kedro/backbones/store.py", "= 64 << 20, 2 ", "= 0, 0 ")
    shutil.rmtree(repository / STORE)
    environment = os.environ | {"PYTHONPATH": str(repository / "src")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command, quiet = ["dvc", "repro", "features"], subprocess.DEVNULL
    process = subprocess.Popen(
        command, cwd=repository, env=environment, stdout=quiet, stderr=quiet, start_new_session=True
    )
    deadline = time.monotonic() + 300
    while len(feature_parts(repository)) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = feature_parts(repository)
    assert repro(repository, "features") == {"features"}
    assert kept.items() < feature_parts(repository).items()


def test_git_tracks_nothing_that_a_plain_run_writes(repository: Path):
    tracked = {Path(name) for name in call(repository, "git", "ls-files", "data").splitlines()}
    assert {file for file in tracked if file.name != ".gitkeep"} == set(METRICS.values())


@pytest.fixture
def fresh(clone: Path, tmp_path: Path) -> Path:
    """A git clone with weights and no other data."""
    call(clone, "git", "clone", "--quiet", str(clone), str(tmp_path / "fresh"))
    shutil.copytree(clone / WEIGHTS, tmp_path / "fresh" / WEIGHTS)
    return tmp_path / "fresh"


def test_a_plain_run_leaves_the_working_tree_clean(fresh: Path):
    call(fresh, "kedro", "run", "--env=test")
    assert (fresh / "data/08_reporting/synthetic/hard/metrics.json").is_file()
    assert call(fresh, "git", "status", "--porcelain") == ""


def test_a_comparison_runs_in_the_environment_of_dvc_too(fresh: Path):
    few = "comparison.settings=general,comparison.n_anomalies=3,comparison.steps=2"
    call(fresh, "kedro", "run", "--env=dvc_test", "--pipelines=comparison", f"--params={few}")
    assert (pd.read_csv(fresh / "data/08_reporting/synthetic/comparison/table.csv")["seconds"] > 0).any()
    assert call(fresh, "git", "status", "--porcelain") == ""


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
    for name in ("data/01_raw/synthetic", str(MODELS / "hard/training")):
        assert any((second / name).iterdir())
    shown = json.loads(call(second, "dvc", "metrics", "show", "--json"))[""]["data"]
    metrics = json.loads((repository / METRICS["hard"]).read_text())
    assert shown[str(METRICS["hard"])]["data"] == metrics
    call(second, "dvc", "plots", "show", "--out", "plots")
    page = (second / "plots/index.html").read_text()
    for setting in SETTINGS:
        assert f"ROC curve of MPFM, {setting} setting" in page and f"Training loss, {setting} setting" in page
        assert f"synthetic_{setting}_score_histograms.png" in page


def test_plots_diff_draws_curves_of_two_revisions_from_their_tables(repository: Path):
    where = "conf/dvc_test/parameters_model.yml:training.learning_rate=0.01"
    call(repository, "dvc", "exp", "run", "--set-param", where, *each("reporting"))
    shown = json.loads(call(repository, "dvc", "plots", "diff", "--json", "HEAD", "workspace"))["data"]
    for file, x, y in (("loss_curves", "epoch", "total"), ("roc_curves", "false_alarms", "MPFM")):
        (plot,) = shown[str(RESULTS["hard"] / f"{file}.csv")]
        points: dict[str, list] = {"HEAD": [], "workspace": []}
        for row in plot["content"]["data"]["values"]:
            points[row["rev"]].append((float(row[x]), float(row[y])))
        assert len(points["HEAD"]) == len(points["workspace"]) > 1
        assert points["HEAD"] != points["workspace"] or file == "roc_curves"


def test_stages_depend_on_every_parameter_that_their_nodes_read():
    stages, pipeline = yaml.safe_load((PROJECT / "dvc.yaml").read_text())["stages"], create_setting("hard")
    checked = 0
    for name, stage in stages.items():
        tags = re.search(r"--tags=(\S+)", stage["cmd"])
        listed = {parameter for file in stage.get("params", []) for own in file.values() for parameter in own}
        for node in pipeline.only_nodes_with_tags(*tags[1].split(",")).nodes if tags else ():
            for group in (item.removeprefix("params:") for item in node.inputs if item.startswith("params:")):
                copied = {source for target, source in COPIES.items() if target.startswith(f"{group}.")}
                own = set() if group in ("compute", "protocol") else {group}
                for needed in copied | own:
                    checked += 1
                    assert any(f"{one}.".startswith(f"{needed}.") for one in listed), f"{name}: {needed}"
    assert checked > 12


def test_stages_depend_on_the_code_of_their_nodes():
    stages, pipeline = yaml.safe_load((PROJECT / "dvc.yaml").read_text())["stages"], create_setting("hard")
    for name, stage in stages.items():
        tags = re.search(r"--tags=(\S+)", stage["cmd"])
        nodes = pipeline.only_nodes_with_tags(*tags[1].split(",")).nodes if tags else ()
        for module in {node.func.__module__ for node in nodes}:
            path = PurePosixPath("src", *module.split("."))
            assert {str(path.parent), f"{path}.py"} & set(stage["deps"]), name
