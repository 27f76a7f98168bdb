"""Ways to run a part of a pipeline: what is given has an effect, or an error says that it has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
KEDRO = Path(sys.executable).with_name("kedro")


def run(root: Path, *arguments: str, params: str = "") -> subprocess.CompletedProcess[str]:
    given = f"--params=output_root={root}{params and ','}{params}"
    command = [str(KEDRO), "run", "--env=test", "--pipelines=hard_setting", given, *arguments]
    environment = os.environ | {"PYTHONPATH": str(PROJECT / "src")}
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a whole run, whose nodes ran in processes of their own."""
    folder = tmp_path_factory.mktemp("results")
    done = run(folder, "--runner=ParallelRunner")
    assert done.returncode == 0, done.stderr
    return folder


def state(root: Path) -> dict[Path, int]:
    """Every file of models, scores and versions, and when it was written."""
    return {
        file: file.stat().st_mtime_ns
        for layer in ("cache", "06_models", "07_model_output", "versions")
        for file in (root / layer).rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize(
    ("arguments", "params", "words"),
    [
        (["--namespaces=hard.training"], "training.epochs=3", ["training.epochs", "hard.runs,hard.training"]),
        (["--namespaces=hard.scoring"], "n_seeds=1", ["n_seeds", "hard.runs,hard.scoring"]),
        (["--load-versions=hard.models:1999-01-01T00.00.00.000Z"], "", ["hard.models", "kedro versions use"]),
    ],
)
def test_what_would_be_ignored_is_an_error(root: Path, arguments: list[str], params: str, words: list[str]):
    before = state(root)
    done = run(root, *arguments, params=params)
    assert done.returncode != 0 and all(word in done.stderr for word in words)
    assert state(root) == before


def test_a_parameter_of_a_node_that_runs_has_an_effect(root: Path):
    before = state(root)
    done = run(root, "--namespaces=hard.runs,hard.prototypes,hard.training", params="training.epochs=3")
    assert done.returncode == 0, done.stderr
    changed = {file.name.split("-")[0] for file in set(state(root)) - set(before)}
    assert {"training", "calibration"} <= changed and "prototypes" not in changed


def test_only_missing_outputs_computes_only_these(root: Path):
    run(root)
    before = state(root)
    assert run(root, "--only-missing-outputs").returncode == 0
    assert state(root) == before
    scores = root / "07_model_output/synthetic/hard/scores.parquet"
    scores.unlink()
    assert run(root, "--only-missing-outputs").returncode == 0
    changed = {file for file, when in state(root).items() if before.get(file) != when}
    assert scores in changed and not any("cache" in file.parts for file in changed)
