"""A study through the command line, on synthetic images: missing datasets, growth, an end in the middle."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from kedro.framework.startup import bootstrap_project

from mpfm_kedro.cli import cli
from mpfm_kedro.sources import synthetic
from running import PROJECT
from test_studies import fits

METHODS = ["MPFM", "Mahalanobis", "kNN-5"]


def study(root: Path, name: str = "small", more: str = "", **changes: object) -> list[str]:
    """Write a study file of two datasets that are there and one that is not; returns the arguments to type."""
    parts = {"dataset": "folder", "name": "parts", "data_root": str(root / "raw/synthetic")}
    parts["hard"] = {"n_anomalies": 1, "methods": METHODS[1:]}
    content = {"n_anomalies": [3], "n_seeds": 1, "methods": METHODS, "datasets": ["synthetic", parts, "headct"]}
    file = root / f"{name}.yml"
    file.write_text(json.dumps(content | changes))  # JSON is YAML
    return [str(file), "--env=test", f"--params=data_root={root / 'raw'},output_root={root / 'out'}{more}"]


def call(*arguments: str, fails: bool = False) -> str:
    bootstrap_project(PROJECT)
    result = CliRunner().invoke(cli, ["study", *arguments])
    assert (result.exit_code != 0) == fails, result.output
    return result.output


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("study")
    synthetic.locate(root / "raw")
    call(*study(root))
    return root


def table(root: Path, name: str = "small", file: str = "table.csv") -> pd.DataFrame:
    return pd.read_csv(root / "out/08_reporting/study" / name / file, keep_default_na=False)


def test_the_report_has_what_the_file_asks_for(root: Path):
    found = table(root).groupby(["name", "setting", "n_anomalies"])["method"].agg(list).to_dict()
    every = {("synthetic", "general", 3): METHODS, ("synthetic", "hard", 3): METHODS, ("parts", "general", 3): METHODS}
    assert found == every | {("parts", "hard", 1): METHODS[1:]}
    ranks = table(root, file="ranks.csv").set_index(["scope", "method"])
    assert set(ranks.loc["all"].index) == set(METHODS)
    assert set(ranks.loc["all"]["n_datasets"]) == {2}
    assert set(ranks.loc["hard, M=1"].index) == set(METHODS[1:])
    plan = table(root, file="plan.csv").set_index("name")
    assert plan["status"].to_dict() == {"synthetic": "done", "parts": "done", "headct": "missing"}
    assert "labels.csv" in plan["problem"]["headct"]
    for name in ("report.html", "study.md"):
        text = (root / "out/08_reporting/study/small" / name).read_text()
        assert "Mean ranks" in text and "headct" in text
    assert (root / "out/08_reporting/study/small/plot.png").stat().st_size > 10_000


def test_a_study_that_grows_computes_only_what_is_new(root: Path, caplog: pytest.LogCaptureFixture):
    before, means = fits(root), table(root)
    more = study(root, "grown", n_seeds=2, datasets=["synthetic"])
    call(*more)
    after = fits(root)
    assert {name for name in before if after[name] != before[name]} == set(), "nothing was made again"
    assert any("prototypes" in str(name) for name in set(after) - set(before))
    call(*more)
    assert fits(root) == after
    same = table(root, "grown").query("method == 'Mahalanobis'")["auc_mean"].tolist()
    assert same == means.query("method == 'Mahalanobis' and name == 'synthetic'")["auc_mean"].tolist()


def test_a_dataset_that_fails_leaves_the_others_and_the_report(root: Path):
    broken = root / "broken"
    (broken / "good").mkdir(parents=True)
    for number in range(4):
        (broken / f"good/{number}.png").write_bytes(b"no image")
    entries = ["synthetic", {"dataset": "folder", "name": "broken", "data_root": str(broken)}]
    shown = call(*study(root, "failing", datasets=entries), fails=True)
    assert "1 of 2 comparisons failed" in shown and "broken: " in shown and "no readable image" in shown
    assert set(table(root, "failing")["name"]) == {"synthetic"}
    assert "no readable image" in (root / "out/08_reporting/study/failing/study.md").read_text()


@pytest.mark.parametrize(
    ("changes", "more", "named"),
    [
        ({"n_seeds": 0}, "", ["wrong.yml", "'n_seeds' = 0"]),
        ({"methods": ["Mahalonobis"]}, "", ["wrong.yml", "Mahalonobis", "Mahalanobis"]),
        ({"parameters": {"n_seed": 3}}, "", ["wrong.yml", "n_seed", "did you mean 'n_seeds'"]),
        ({"datasets": ["synthetic", "synthetic"]}, "", ["wrong.yml", "two datasets", "'synthetic'"]),
        ({}, ",n_seeds=3", ["'n_seeds'", "study file"]),
    ],
)
def test_a_wrong_study_is_refused_before_anything_runs(changes, more, named, tmp_path: Path):
    shown = call(*study(tmp_path, "wrong", more, **changes), fails=True)
    assert all(name in shown for name in named), shown
    assert not (tmp_path / "out").exists()
