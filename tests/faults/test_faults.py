"""The short form of the fault suite: real processes, disks and files, in the stages where a fault costs most.

``make faults`` does the rest, and prints tables of all cases (docs/operations.md).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.cases import (
    NotHereError,
    Undisturbed,
    damage,
    disk_full,
    kill_dask_scheduler,
    kill_main,
    kill_worker,
    permission_lost,
    two_processes,
)
from faults.project import end_all


@pytest.fixture(scope="module")
def base() -> Iterator[Undisturbed]:
    """A run without faults."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        yield Undisturbed.make(folder)
    finally:
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    end_all()


@pytest.mark.parametrize(
    ("fault", "stage"),
    [
        (kill_main, "features"),
        (kill_main, "training"),
        (kill_worker, "features"),
        (kill_worker, "prototypes"),
        (kill_dask_scheduler, "scoring"),
        (two_processes, "runs"),
        (disk_full, "features"),
        (disk_full, "prototypes"),
        (disk_full, "evaluation"),
        (permission_lost, "runs"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_disturbed_stage_loses_nothing(fault, stage, base):
    try:
        assert "equal results" in fault(base, stage, f"{fault.__name__}_{stage}")
    except NotHereError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("kind", "how", "outcome"),
    [
        ("feature maps", "cut", "named in one line"),
        ("keys of features", "empty", "named in one line"),
        ("weights", "flipped bit", "named and rebuilt"),
        ("fit of training", "cut", "named and rebuilt"),
        ("fit of prototypes", "empty", "named and rebuilt"),
        ("scores of one detector", "cut", "named and rebuilt"),
        ("fit that scoring reads", "cut", "named in one line"),
        ("trial table", "cut", "named in one line"),
        ("what is known of image files", "cut", "named and rebuilt"),
        ("score table", "cut", "named in one line"),
    ],
)
def test_a_damaged_file_is_named_and_rebuilt(kind, how, outcome, base):
    assert damage(base, kind, how, f"{kind} {how}".replace(" ", "_").replace(",", "")).startswith(outcome)
