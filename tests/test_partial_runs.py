"""Ways to run a part of a pipeline: what is given has an effect, or an error says that it has none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pandas as pd
import pytest

from mpfm_kedro.atomic import load_table, save_table
from mpfm_kedro.protocol.memory import read_details
from running import kedro, typed


def run(root: Path, *arguments: str, params: str = "") -> subprocess.CompletedProcess[str]:
    return kedro(*typed("hard_setting", root, *filter(None, [params])), *arguments)


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
        for file in (root / "out" / layer).rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize(
    ("arguments", "params", "words"),
    [
        (["--tags=train_mpfm"], "prototypes.n_prototypes=3", ["prototypes.n_prototypes", "initialise_prototypes"]),
        (["--tags=score_images"], "n_seeds=1", ["n_seeds", "draw_runs"]),
        (["--load-versions=samples:1999-01-01T00.00.00.000Z"], "", ["samples", "not versioned"]),
        (
            ["--load-versions=hard_models:1999-01-01T00.00.00.000Z", "--tags=score_images"],
            "",
            ["models.parquet", "1999"],
        ),
    ],
)
def test_what_would_be_ignored_is_an_error(root: Path, arguments: list[str], params: str, words: list[str]):
    before = state(root)
    done = run(root, *arguments, params=params)
    assert done.returncode != 0 and all(word in done.stderr for word in words)
    assert state(root) == before


def test_a_namespace_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KEDRO_ENV", "test")
    done = kedro("run", "--namespaces=hard.training", "--params=training.head_epochs=3")
    assert done.returncode != 0 and "hard.training" in done.stderr


def test_a_parameter_of_a_node_that_runs_has_an_effect(root: Path):
    before = state(root)
    done = run(root, "--tags=train_mpfm,calibrate_scores", params="training.epochs=3")
    assert done.returncode == 0, done.stderr
    new = [file for file in set(state(root)) - set(before) if file.suffix == ".safetensors"]
    assert {file.parent.name for file in new} == {"training", "calibration"}
    details = [read_details(file) for file in new if file.parent.name == "training"]
    assert {(one["parameters"]["epochs"], max(row["epoch"] for row in one["history"])) for one in details} == {(3, 3)}


def test_a_version_takes_precedence_over_the_present_table(root: Path):
    """The present scores are turned round, so that whoever reads them finds one minus the AUC of the version."""
    scores = root / "out/07_model_output/synthetic/hard/scores.parquet"
    version = min((root / "out/versions/synthetic/hard/scores.parquet").iterdir())
    before, kept = scores.read_bytes(), load_table(version / scores.name)
    save_table(kept.assign(score=-kept["score"]), scores)
    found = []
    for more in ([], [f"--load-versions=hard_scores:{version.name}"]):
        done = run(root, "--tags=evaluate", *more)
        assert done.returncode == 0, done.stderr
        found.append(pd.read_csv(root / "out/08_reporting/synthetic/hard/runs.csv")["auc"])
    scores.write_bytes(before)
    assert (found[1] > 0.6).any() and found[0].tolist() == pytest.approx((1 - found[1]).tolist())


def test_only_missing_outputs_computes_only_these(root: Path):
    run(root)
    before = state(root)
    assert run(root, "--only-missing-outputs").returncode == 0
    assert state(root) == before
    scores = root / "out/07_model_output/synthetic/hard/scores.parquet"
    scores.unlink()
    assert run(root, "--only-missing-outputs").returncode == 0
    changed = {file for file, when in state(root).items() if before.get(file) != when}
    assert scores in changed and not any("06_models" in file.parts for file in changed), changed
