"""A study on a Dask cluster of two workers, one of which is killed on the way: equal to the study without Dask."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from kedro.framework.startup import bootstrap_project

from mpfm_kedro.cli import cli
from mpfm_kedro.experiments.cache import ArtefactFile
from mpfm_kedro.sources import synthetic
from test_project import PROJECT

STUDY = {"settings": ["general"], "n_anomalies": [3, 1], "n_seeds": 2, "methods": ["MPFM", "Mahalanobis", "DevNet"]}


def compare(root: Path, raw: Path, *more: str) -> pd.DataFrame:
    """Run the study; returns its scores."""
    (root / "study.yml").write_text(json.dumps(STUDY | {"datasets": ["synthetic"]}))
    params = ",".join([f"study={root / 'study.yml'}", f"data_root={raw}", f"output_root={root / 'out'}", *more])
    bootstrap_project(PROJECT)
    result = CliRunner().invoke(cli, ["run", "--env=test", "--pipelines=study", f"--params={params}"])
    assert result.exit_code == 0, result.output
    return pd.read_parquet(root / "out/07_model_output/synthetic/comparison/scores.parquet")


def pieces(root: Path) -> dict[str, str]:
    """What was fitted, by key; the numbers alone."""
    files = (root / "out/cache/models").glob("*.safetensors")
    return {file.name: ArtefactFile(file).digest() for file in files if not file.name.startswith("scores")}


def kill_one(workers: dict[str, int], folder: Path, killed: list[int]) -> None:
    """Kill a worker in the middle of the fits."""
    while not list(folder.glob("prototypes-*.safetensors")):
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
        folder = tmp_path / "there/out/cache/models"
        threading.Thread(target=kill_one, args=(workers, folder, killed), daemon=True).start()
        there = compare(tmp_path / "there", tmp_path / "raw", f"compute.dask_scheduler={cluster.scheduler_address}")
    assert killed
    pd.testing.assert_frame_equal(there, here, check_exact=True)
    assert pieces(tmp_path / "there") == pieces(tmp_path / "here")
    stores = [
        next((tmp_path / name / "out/04_feature/store").glob("*/store.json")).parent for name in ("here", "there")
    ]
    assert stores[0].name == stores[1].name
