"""A study on a Dask cluster of two workers, one of which is killed on the way: equal to the study without Dask."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from mpfm_kedro.sources import synthetic
from test_study import call

STUDY = {"settings": ["general"], "n_anomalies": [3, 1], "n_seeds": 2, "methods": ["MPFM", "Mahalanobis", "DevNet"]}


def compare(root: Path, raw: Path, *more: str) -> pd.DataFrame:
    """Run the study; returns its scores."""
    (root / "study.yml").write_text(json.dumps(STUDY | {"datasets": ["synthetic"]}))
    params = ",".join([f"data_root={raw}", f"output_root={root / 'out'}", *more])
    call(str(root / "study.yml"), "--env=test", f"--params={params}")
    return pd.read_parquet(root / "out/07_model_output/synthetic/comparison/scores.parquet")


def fits(root: Path) -> dict[str, str]:
    """The bytes of what was fitted, by stage and key; of scores their numbers are compared."""
    files = (root / "out/06_models/synthetic").glob("*/[!.]*.safetensors")  # a killed worker leaves its unfinished file
    digests = {f"{file.parent.name}/{file.name}": hashlib.md5(file.read_bytes()).hexdigest() for file in files}
    return {name: digest for name, digest in digests.items() if not name.startswith(("scores/", "baselines/"))}


def kill_one(workers: dict[str, int], folder: Path, killed: list[int]) -> None:
    """Kill a worker in the middle of the fits."""
    while not list(folder.glob("prototypes/[!.]*.safetensors")):
        time.sleep(0.05)
    process = next(iter(workers.values()))
    os.kill(process, signal.SIGKILL)
    killed.append(process)


def test_a_killed_worker_changes_nothing(tmp_path: Path):
    distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    synthetic.locate(tmp_path / "raw")
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here = compare(tmp_path / "here", tmp_path / "raw")
    killed: list[int] = []
    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None, protocol="tcp://") as cluster,
        distributed.Client(cluster) as client,
    ):
        workers = client.run(os.getpid)
        folder = tmp_path / "there/out/06_models/synthetic"
        threading.Thread(target=kill_one, args=(workers, folder, killed), daemon=True).start()
        there = compare(tmp_path / "there", tmp_path / "raw", f"compute.dask_scheduler={cluster.scheduler_address}")
    assert killed
    pd.testing.assert_frame_equal(there, here, check_exact=True)
    assert fits(tmp_path / "there") == fits(tmp_path / "here")
    stores = [list((tmp_path / name / "out/04_feature/store").glob("*/store.json")) for name in ("here", "there")]
    assert stores[0][0].parent.name == stores[1][0].parent.name
