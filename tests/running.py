"""Pipelines in the test environment, in this process or by the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

PROJECT = Path(__file__).parents[1]
KEDRO = str(Path(sys.executable).with_name("kedro"))


def run(pipeline: str, root: Path, **parameters: object) -> Path:
    """Run a pipeline on raw images in ``root``; returns the folder of its outputs there."""
    bootstrap_project(PROJECT)
    roots = {"data_root": str(root / "raw"), "output_root": str(root / "out")}
    with KedroSession.create(PROJECT, env="test", runtime_params=roots | parameters) as session:
        session.run(pipeline_names=[pipeline])
    return root / "out"


def typed(pipeline: str, root: Path, *more: str, env: str = "test") -> list[str]:
    """What is typed after ``kedro`` to do the same; ``more`` are parameters."""
    roots = [f"data_root={root / 'raw'}", f"output_root={root / 'out'}"]
    return ["run", f"--env={env}", f"--pipelines={pipeline}", "--params=" + ",".join([*roots, *more])]


def kedro(*arguments: str, folder: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    """Run a command of kedro in a folder of the project."""
    return subprocess.run([KEDRO, *arguments], cwd=folder, capture_output=True, text=True, check=False)
