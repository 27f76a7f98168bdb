"""Runs in one output folder: results are written by one run at a time, shared tables by runs that agree on them."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kedro.io import DataCatalog
from kedro.pipeline import Pipeline, node

from mpfm_kedro.errors import InputError
from mpfm_kedro.hooks import ProjectHooks, used_results
from mpfm_kedro.locks import Use, locked, table_parameters

TABLES = {"image_size": 64, "features.layers": ["auto"]}

HOLD = """
import json, sys
from pathlib import Path
from mpfm_kedro.locks import Use, locked

with locked(Path(sys.argv[1]), Use(**json.loads(sys.argv[2]))):
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_run(root: Path, **use: Any):
    """Another process that holds what it uses until the end of the block."""
    arguments = [sys.executable, "-c", HOLD, str(root), json.dumps(use)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        try:
            yield process
        finally:
            process.kill()


def test_results_of_a_study_are_written_by_one_run(tmp_path):
    with (
        other_run(tmp_path, dataset="synthetic", studies=["hard", "general"], started="yesterday") as other,
        pytest.raises(InputError) as raised,
        locked(tmp_path, Use("synthetic", ["hard"])),
    ):
        pass
    message = str(raised.value)
    assert "\n" not in message
    for part in ("'synthetic'", "'hard'", f"process {other.pid}", "yesterday", "wait for it", "output_root"):
        assert part in message
    with locked(tmp_path, Use("synthetic", ["hard"])):
        pass  # a killed process holds nothing


@pytest.mark.parametrize(
    ("folder", "dataset", "study"), [("", "elpv", "hard"), ("", "synthetic", "general"), ("other", "synthetic", "hard")]
)
def test_other_results_go_side_by_side(folder, dataset, study, tmp_path):
    with (
        other_run(tmp_path, dataset="synthetic", studies=["hard"], tables=TABLES),
        locked(tmp_path / folder, Use(dataset, [study], TABLES)),
    ):
        assert len(list(tmp_path.glob("**/locks/*.json"))) == 2


def test_shared_tables_need_equal_parameters(tmp_path):
    with other_run(tmp_path, dataset="synthetic", studies=["hard"], tables=TABLES):
        with locked(tmp_path, Use("synthetic", ["general"], dict(TABLES))):
            pass
        differing = {**TABLES, "image_size": 448}
        with (
            pytest.raises(InputError, match=r"image_size=64.*image_size=448.*output_root") as raised,
            locked(tmp_path, Use("synthetic", ["general"], differing)),
        ):
            pass
        assert "\n" not in str(raised.value)
        with locked(tmp_path, Use("elpv", ["general"], differing)), locked(tmp_path, Use("synthetic", ["report"])):
            pass


def test_shared_tables_stay_locked_until_the_last_run_ends(tmp_path):
    with locked(tmp_path, Use("synthetic", ["general"], TABLES)):
        with other_run(tmp_path, dataset="synthetic", studies=["hard"], tables=TABLES):
            pass
        with (
            pytest.raises(InputError, match="image_size"),
            locked(tmp_path, Use("synthetic", ["hard"], {**TABLES, "image_size": 1})),
        ):
            pass


def test_remnant_of_a_killed_run_is_deleted(tmp_path):
    with other_run(tmp_path, dataset="synthetic", studies=["hard"]):
        (left,) = (tmp_path / "locks").glob("*.json")
    assert left.exists()
    with locked(tmp_path, Use("synthetic", ["hard"])):
        assert not left.exists()
    assert [file.name for file in (tmp_path / "locks").iterdir()] == ["mutex"]


def test_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "out").write_text("a file where a folder should be")
    with (
        pytest.raises(InputError, match=r"out/locks.*choose another output_root"),
        locked(tmp_path / "out", Use("a", [])),
    ):
        pass


# which parameters decide the tables

PARAMETERS: dict[str, Any] = {
    **{"dataset": "synthetic", "name": "synthetic", "category": "all", "data_root": "data/01_raw"},
    **{"image_size": 64, "backbone": "resnet18", "output_root": "out", "n_anomalies": 3},
    "ingestion": {"split_by_item": False},
    "features": {"layers": ["auto"], "batch_size": 32, "workers": 1, "compile": False},
}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"n_anomalies": 1}, True),
        ({"data_root": "./data/01_raw"}, True),
        ({"data_root": "/project/data/01_raw"}, True),
        ({"features": {**PARAMETERS["features"], "workers": 4, "batch_size": 8, "compile": True}}, True),
        ({"features": {**PARAMETERS["features"], "layers": ["layer4"]}}, False),
        ({"ingestion": {"split_by_item": True}}, False),
        ({"data_root": "elsewhere"}, False),
        ({"category": "bottle"}, False),
        ({"image_size": 448}, False),
        ({"backbone": "resnet50"}, False),
    ],
)
def test_parameters_that_decide_the_tables(change, same):
    project = Path("/project")
    assert (table_parameters({**PARAMETERS, **change}, project) == table_parameters(PARAMETERS, project)) is same


# the hook


def _same(value: object) -> object:
    return value


SHARED = Pipeline([node(_same, "params:features", "samples")])
STUDY = Pipeline([node(_same, "samples", "hard_runs"), node(_same, "hard_runs", "hard_summary")])
LISTING = Pipeline([node(_same, "params:data_root", "datasets"), node(_same, "datasets", "datasets_summary_text")])


@pytest.mark.parametrize(
    ("pipeline", "studies", "tables"),
    [
        (SHARED, set(), {"samples"}),
        (SHARED + STUDY, {"hard"}, {"samples"}),
        (STUDY, {"hard"}, {"samples"}),  # reads what others must not change meanwhile
        (STUDY.from_inputs("hard_runs"), {"hard"}, set()),
        (LISTING, {"datasets"}, set()),
        (Pipeline([]), set(), set()),
    ],
)
def test_what_a_pipeline_uses(pipeline, studies, tables):
    assert used_results(pipeline) == (studies, tables)


class Hooks(ProjectHooks):
    """The project's, after the context of a run with some changed parameters was created."""

    def __init__(self, project: Path, **changes: Any) -> None:
        super().__init__()
        self._project, self._parameters = project, {**PARAMETERS, **changes}

    def end(self, pipeline: Pipeline | None = None) -> None:
        self.after_pipeline_run(pipeline or Pipeline([]), DataCatalog())

    def fail(self) -> None:
        self.on_pipeline_error(ValueError())


@pytest.mark.parametrize("release", ["end", "fail", None])
def test_runs_of_one_process_follow_each_other(release, tmp_path):
    """None: an interrupted run of a notebook, which no hook hears of."""
    first, other = Hooks(tmp_path), Hooks(tmp_path, n_anomalies=1)
    first.lock(SHARED + STUDY)
    assert (tmp_path / "out/locks").is_dir()  # relative to the project, whatever the current folder
    with pytest.raises(InputError, match="'hard'"):
        other.lock(STUDY)
    if release is None:
        first.lock(Pipeline([]))
    else:
        getattr(first, release)()
    other.lock(STUDY)
    other.end()
