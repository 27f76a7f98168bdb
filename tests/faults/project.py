"""The stages of the hard setting on synthetic images, each run as a process of its own that can be disturbed.

This process never runs a pipeline itself.
"""

from __future__ import annotations

import atexit
import hashlib
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import psutil

from mpfm_kedro.backbones.store import read_keys, row_keys

PROJECT = Path(__file__).parents[2]
FEW = "n_seeds=1,known_class=spot"
# each stage by the tags of its nodes
# in the order in which a whole run has them
STAGES = {
    "ingestion": "ingestion",
    "audit": "audit",
    "runs": "draw_runs",
    "features": "extract_features",
    "prototypes": "initialise_prototypes",
    "training": "train_mpfm",
    "calibration": "calibrate_scores",
    "scoring": "score_images",
    "evaluation": "evaluate",
    "reporting": "describe_models,draw_figures,write_report",
}
FITS = ("prototypes", "training", "calibration")
WITH_WORKERS = (*FITS, "scoring")
SECONDS = 600  # after which a process is believed to hang
# where each stage writes first, below the output folder
TARGETS = {
    "ingestion": "02_intermediate/synthetic",
    "audit": "08_reporting/synthetic",
    "features": "04_feature/store",
    "runs": "05_model_input/synthetic/hard",
    **{stage: f"06_models/synthetic/{stage}" for stage in FITS},
    "scoring": "06_models/synthetic/scores",
    "evaluation": "08_reporting/synthetic/hard",
    "reporting": "08_reporting/synthetic/hard",
}


# what each stage makes, as ``results`` names it
MADE = {
    "ingestion": "02_intermediate/",
    "audit": "08_reporting/synthetic/audit.csv",
    "features": "features ",
    "runs": "05_model_input/",
    **{stage: f"06_models/synthetic/{stage}/" for stage in FITS},
    "scoring": "07_model_output/synthetic/hard/scores.parquet",
    "evaluation": "08_reporting/synthetic/hard/summary.csv",
    "reporting": "08_reporting/synthetic/hard/",
}


STARTED: list[Process] = []
# Python's own server of processes: it is started anew, imports what is slow to import, and then forks. A process of it
# costs little, and has nothing of the threads, streams and log handlers of a test.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["kedro.framework.cli", "matplotlib.pyplot"]
    + [f"mpfm_kedro.{name}" for name in ("cli", "protocol.scores", "inspection.production", "pipeline_registry")]
)


def nothing() -> None:
    """What happens in a process before its command, where nothing is said."""


def end_all() -> None:
    """Kill what still runs of all that was started, after a test that failed."""
    for process in STARTED:
        process.kill()
        process.wait()
    STARTED.clear()


class Process:
    """A process that runs ``kedro`` with some arguments.

    Args:
        arguments: of the command line.
        log: the file for all that it writes.
        before: called in it first, as the parts that it has of a fault; importable by name.
    """

    def __init__(self, arguments: Sequence[str], log: Path, before: Callable[[], None] = nothing) -> None:
        self._log = log
        self._log.write_bytes(b"")
        self._process = SERVER.Process(target=_run, args=(arguments, log, before))
        self._process.start()
        STARTED.append(self)

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def output(self) -> str:
        """Standard output and errors so far."""
        return self._log.read_text(errors="replace")

    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.is_alive()

    def wait(self) -> int:
        """Its exit code; the negative signal if it was killed."""
        self._process.join(SECONDS)
        if self._process.exitcode is None:
            self.kill()
            raise AssertionError(f"the process hangs:\n{self.output}")
        return self._process.exitcode

    def kill(self) -> None:
        """End it as a machine without memory does."""
        self._process.kill()

    def workers(self) -> list[psutil.Process]:
        """Its worker processes: those of loky, and those that were forked to read images."""
        found = []
        with suppress(psutil.Error):
            own = psutil.Process(self.pid)
            of_main = own.cmdline()
            for child in own.children(recursive=True):
                with suppress(psutil.Error):  # it has just ended; the others count
                    line = child.cmdline()
                    if "LokyProcess" in " ".join(line) or line == of_main:
                        found.append(child)
        return found


def _run(arguments: Sequence[str], log: Path, before: Callable[[], None]) -> None:
    """Do in this process what the command ``kedro`` does, to its very end."""
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(PROJECT)
    sys.argv = ["kedro", *arguments]
    multiprocessing.set_start_method(None, force=True)  # its own workers are started as ever
    before()
    from kedro.framework.cli import main

    try:
        main()
    finally:
        threading._shutdown()  # as the interpreter ends, in its order; a forked process would leave it out
        atexit._run_exitfuncs()


@dataclass(frozen=True)
class Project:
    """Raw images and outputs below one folder."""

    folder: Path

    @property
    def out(self) -> Path:
        """The output folder."""
        return self.folder / "out"

    def arguments(self, stages: Sequence[str], setting: str = "hard", more: str = "") -> list[str]:
        """The command line of some stages of a setting; of all of them where none is named."""
        few = f",{FEW}" if not stages or "runs" in stages else ""  # a parameter without an effect would be refused
        parameters = f"data_root={self.folder / 'raw'},output_root={self.out}{few}{more}"
        chosen = [f"--tags={','.join(STAGES[stage] for stage in stages)}"] if stages else []
        return ["run", "--env=test", f"--pipelines={setting}_setting", *chosen, f"--params={parameters}"]

    def start(
        self,
        *stages: str,
        setting: str = "hard",
        more: str = "",
        name: str = "log",
        before: Callable[[], None] = nothing,
    ) -> Process:
        """Start stages."""
        return Process(self.arguments(stages, setting, more), self.folder / f"{name}.txt", before)

    def run(self, *stages: str, before: Callable[[], None] = nothing) -> str:
        """Run stages, which must succeed; returns what was written."""
        process = self.start(*stages, before=before)
        assert process.wait() == 0, process.output
        return process.output

    def copy_from(self, other: Project) -> Project:
        """Put a copy of another project's outputs here, beside a link to its raw images."""
        self.folder.mkdir(parents=True, exist_ok=True)
        raw = self.folder / "raw"
        if not raw.exists():
            raw.symlink_to((other.folder / "raw").resolve(), target_is_directory=True)
        copy(other.out, self.out)
        return self


def copy(source: Path, target: Path) -> None:
    """Copy what is in a folder; files that share their disk blocks do so in the copy, too."""
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "--archive", f"{source}/.", str(target)], check=True)


def refused(process: Process) -> str:
    """The one clear message that a run ends with, which names each failed task in a line of its own.

    A trace-back, or a success, is a failure of the test.
    """
    code, output = process.wait(), process.output
    assert code == 1, f"exit code {code}:\n{output}"
    assert "Traceback" not in output, output
    _, *messages = f"\n{output}".split("\nError: ")
    assert len(messages) == 1, output
    return messages[0]


def results(out: Path) -> dict[str, str]:
    """Digests of everything that a run decides; how long it took does not count."""
    found = {}
    for file in sorted(out.glob("0[257]_*/**/*.parquet")):
        if file.name != "files.parquet":
            found[str(file.relative_to(out))] = _of_table(pd.read_parquet(file))
    for file in sorted(out.glob("08_reporting/**/*.csv")):
        found[str(file.relative_to(out))] = _of_table(pd.read_csv(file))
    for stage in FITS:
        for file in sorted(out.glob(f"06_models/*/{stage}/*.safetensors")):
            found[str(file.relative_to(out))] = hashlib.sha256(file.read_bytes()).hexdigest()
    for store in (file.parent for file in out.glob("04_feature/store/*/store.json")):
        views = [pd.read_parquet(views) for views in out.glob("04_feature/*/features.parquet")]
        wanted = set(row_keys(pd.concat(views)))  # others are never read
        for name in ("pooled", "maps"):
            rows = {}
            for file in sorted(store.glob("*.keys.txt")):
                numbers = np.load(file.with_name(file.name.replace("keys.txt", f"{name}.npy")))
                rows |= dict(zip(read_keys(file), numbers, strict=True))
            content = b"".join(rows[key].tobytes() for key in sorted(wanted & rows.keys()))
            found[f"features {name}"] = hashlib.sha256(content).hexdigest()
    return found


def _of_table(table: pd.DataFrame) -> str:
    return hashlib.sha256(table.drop(columns="seconds", errors="ignore").to_csv(index=False).encode()).hexdigest()


def assert_same(out: Path, expected: dict[str, str]) -> None:
    """All results that are there must be the expected ones, and none may be missing."""
    found = results(out)
    assert found.keys() >= expected.keys(), sorted(expected.keys() - found.keys())
    changed = [name for name in expected if found[name] != expected[name]]
    assert not changed, changed
