"""The project's commands, by click's runner."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from mpfm_kedro.cli import cli
from mpfm_kedro.files import load_table, save_table

PROJECT = Path(__file__).parents[1]
VERSION = "2026-01-02T03.04.05.678Z"


def call(*arguments: str, fails: bool = False) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code != 0) == fails, result.output
    return result.output


def keep(root: Path, version: str, auc: float, record: dict | None = None) -> None:
    """One version of a hard setting with two classes."""
    summary = pd.DataFrame(
        {"dataset": "synthetic", "category": "", "method": "MPFM", "known_class": ["spot", "mean"], "n_anomalies": 3}
        | {"auc_mean": [0.1, auc], "auc_std": 0.0, "ap_mean": 0.5, "ap_std": 0.0, "n_seeds": 2}
    )
    folder = root / "versions/synthetic/hard"
    for name in ("summary.csv", "record.json"):
        (folder / name / version).mkdir(parents=True)
    summary.to_csv(folder / "summary.csv" / version / "summary.csv", index=False)
    if record is not None:
        (folder / "record.json" / version / "record.json").write_text(json.dumps(record))


def test_versions_are_listed_with_auc_and_origin(tmp_path: Path):
    keep(tmp_path, VERSION, 0.75, {"revision": "abc123", "data": "d" * 16, "weights": "e" * 64})
    keep(tmp_path, "2026-01-01T00.00.00.000Z", 0.625)  # of a time when no record was kept
    _, first, second = call("versions", "list", "--output-root", str(tmp_path)).splitlines()
    assert "0.6250" in first
    assert VERSION in second
    assert {"0.7500", "abc123", "d" * 12, "e" * 12} <= set(second.split())


def test_no_version(tmp_path: Path):
    assert "no version" in call("versions", "list", "--output-root", str(tmp_path))


def test_unknown_version_is_named_with_the_known_ones(tmp_path: Path):
    (tmp_path / "versions/synthetic/hard/models" / VERSION).mkdir(parents=True)
    shown = call("versions", "use", "synthetic", "hard", "yesterday", "--output-root", str(tmp_path), fails=True)
    assert "yesterday" in shown and VERSION in shown


def test_fetched_images_are_drawn_once(tmp_path: Path):
    assert call("fetch", "data", "synthetic", "--data-root", str(tmp_path)).strip() == str(tmp_path / "synthetic")
    image = tmp_path / "synthetic/good/000.png"
    image.unlink()
    call("fetch", "data", "synthetic", "--data-root", str(tmp_path))
    assert not image.exists()  # what is there is left as it is


def test_fetched_images_of_a_package_are_copied(tmp_path: Path):
    call("fetch", "data", "elpv", "--data-root", str(tmp_path))
    assert (tmp_path / "elpv/labels.csv").is_file()
    assert len(list((tmp_path / "elpv/images").iterdir())) == 2624


@pytest.mark.parametrize(("dataset", "message"), [("synthetik", "synthetic"), ("aitex", "aitex")])
def test_images_that_are_nowhere_are_an_error(dataset: str, message: str, tmp_path: Path):
    assert message in call("fetch", "data", dataset, "--data-root", str(tmp_path), fails=True)


def test_own_images_in_the_data_root_itself_are_not_copied(tmp_path: Path):
    (tmp_path / "good").mkdir()
    assert "move them" in call("fetch", "data", "folder", "--data-root", str(tmp_path), fails=True)


def test_stores_are_listed_and_freed(tmp_path: Path):
    assert "no feature store" in call("store", "list", "--output-root", str(tmp_path))
    assert "nonsense" in call("store", "free", "nonsense", "--output-root", str(tmp_path), fails=True)


def run(root: Path, namespaces: list[str] | None = None, **parameters: object) -> pd.DataFrame:
    """Run the hard setting; returns its scores."""
    bootstrap_project(PROJECT)
    own = {"data_root": str(root / "raw"), "output_root": str(root), "n_seeds": 1, "known_class": "spot"}
    with KedroSession.create(PROJECT, env="test", runtime_params=own | parameters) as session:
        session.run(pipeline_names=["hard_setting"], namespaces=namespaces)
    return pd.read_parquet(root / "07_model_output/synthetic/hard/scores.parquet")


def versions(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "versions/synthetic/hard/models").iterdir())


def use(root: Path, version: str, **options: bool) -> str:
    return call("versions", "use", "synthetic", "hard", version, "--output-root", str(root), "--env", "test", **options)


def test_older_models_score_again_as_they_did(tmp_path: Path):
    first = run(tmp_path, training={"hidden": 7})  # not the default, which a record could show by mistake
    second = run(tmp_path, training={"hidden": 9})
    assert not first.equals(second)
    shown = use(tmp_path, versions(tmp_path)[0])
    namespaces = re.search(r"--namespaces=(\S+)", shown).group(1).split(",")
    assert "dataset=synthetic" in shown and f"output_root={tmp_path}" in shown
    again = run(tmp_path, namespaces)
    pd.testing.assert_frame_equal(again, first)
    files = sorted((tmp_path / "versions/synthetic/hard/record.json").glob("*/*.json"))
    records = [json.loads(file.read_text()) for file in files]
    assert json.loads((tmp_path / "08_reporting/synthetic/hard/record.json").read_text()) == records[2]
    assert records[0]["models"] == records[2]["models"] != records[1]["models"]
    widths = [record["parameters"]["MPFM"]["training"]["hidden"] for record in records]
    assert widths == [7, 9, 7]
    assert all(record["revision"] and record["data"] and record["weights"] for record in records)
    assert len(call("versions", "list", "--output-root", str(tmp_path)).splitlines()) == 1 + 3 * 3  # three methods


def test_a_version_is_used_whole_and_by_the_beginning_of_its_name(tmp_path: Path):
    run(tmp_path, prototypes={"n_prototypes": 2})
    run(tmp_path, prototypes={"n_prototypes": 5})
    used = tmp_path / "06_models/synthetic/hard"
    present = {name: (used / name / "index.json").read_text() for name in ("initial_models", "models")}
    first, second = versions(tmp_path)
    assert "is not unique" in use(tmp_path, "20", fails=True)
    use(tmp_path, first[:-2] if not second.startswith(first[:-2]) else first)
    for name, text in present.items():
        assert (used / name / "index.json").read_text() != text, "untrained models belong to the version, too"


def test_a_damaged_version_is_refused(tmp_path: Path):
    run(tmp_path)
    (version,) = versions(tmp_path)
    file = next((tmp_path / "versions/synthetic/hard/models" / version / "models").glob("training-*"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert file.name in use(tmp_path, version, fails=True)


def test_models_that_learned_what_is_tested_now_are_refused(tmp_path: Path):
    """As after another split of the normals: run names stay, what they train and test on does not."""
    run(tmp_path)
    file = tmp_path / "05_model_input/synthetic/hard/runs.parquet"
    runs = load_table(file)
    for train, test in zip(runs["train_normals"], runs["test_normals"], strict=True):
        train[0], test[0] = test[0], train[0]
    save_table(runs, file)
    before = (tmp_path / "06_models/synthetic/hard/models/index.json").read_bytes()
    assert "has learned" in use(tmp_path, versions(tmp_path)[0], fails=True)
    assert (tmp_path / "06_models/synthetic/hard/models/index.json").read_bytes() == before
