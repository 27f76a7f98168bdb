"""The hard setting on synthetic images, stage by stage, as processes that can be disturbed.

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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from mpfm_kedro.backbones.store import read_keys

PROJECT = Path(__file__).parents[2]
SECONDS = 600  # after which a process is believed to hang


class Stage(NamedTuple):
    """The tags of its nodes, the folder it writes to first, and patterns of what it makes."""

    tags: str
    target: str
    made: tuple[str, ...]


MODELS, RESULTS, REPORTS = (f"{layer}/synthetic" for layer in ("06_models", "07_model_output", "08_reporting"))


def fits(name: str, table: str) -> tuple[str, tuple[str, ...]]:
    """The folder in the memory of fits, and patterns of what is in it and of the table that lists it."""
    return f"{MODELS}/{name}", (f"{MODELS}/{name}/*", table)


STAGES = {  # in the order of a whole run
    "ingestion": Stage("ingestion", "02_intermediate/synthetic", ("02_intermediate/synthetic/*.parquet",)),
    "audit": Stage("audit", REPORTS, (f"{REPORTS}/*.*",)),
    "runs": Stage("draw_runs", "05_model_input/synthetic/hard", ("05_model_input/synthetic/hard/*",)),
    "features": Stage("extract_features", "04_feature/store", ("04_feature/**/*",)),
    "prototypes": Stage("initialise_prototypes", *fits("prototypes", f"{MODELS}/hard/prototypes.parquet")),
    "training": Stage("train_mpfm", *fits("training", f"{MODELS}/hard/trained.parquet")),
    "calibration": Stage("calibrate_scores", *fits("calibration", f"{MODELS}/hard/models.parquet")),
    "scoring": Stage("score_images", *fits("scores", f"{RESULTS}/hard/scores.parquet")),
    "evaluation": Stage("evaluate", f"{REPORTS}/hard", (f"{REPORTS}/hard/*.csv", f"{REPORTS}/hard/*.json")),
    "reporting": Stage(
        "describe_models,draw_figures,write_report",
        f"{REPORTS}/hard",
        (f"{REPORTS}/hard/*.[ph]*", f"{REPORTS}/hard/*_*.csv"),
    ),
}
# what a run decides; times and dates are elsewhere
DECIDED = ("02_*/*/samples.parquet", "05_*/*/hard/*", "06_*/*/hard/*", "07_*/*/hard/scores.parquet")
DECIDED += tuple(f"{STAGES[name].target}/*.safetensors" for name in ("prototypes", "training", "calibration"))
DECIDED += (f"{REPORTS}/*.csv", f"{REPORTS}/hard/*.csv", f"{REPORTS}/hard/*.png")

STARTED: list[Process] = []
# a fork of a server that has imported what is slow to import costs little, and has no threads and streams of a test
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["kedro.framework.cli", "matplotlib.pyplot"]
    + [f"mpfm_kedro.{name}" for name in ("cli", "protocol.scores", "inspection.production", "pipeline_registry")]
)


def nothing() -> None:
    """What a process does before its command, if nothing is said."""


class Process:
    """A process that runs ``kedro`` with some arguments and writes to a log.

    ``before`` is called in it first, to prepare a fault; it must be importable by name.
    """

    def __init__(self, arguments: list[str], log: Path, before: Callable[[], None] = nothing) -> None:
        self._log = log
        self._log.write_bytes(b"")
        self._process = SERVER.Process(target=_run, args=(arguments, log, before))
        self._process.start()
        self.pid: int = self._process.pid  # type: ignore[assignment]
        STARTED.append(self)

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
        assert self._process.exitcode is not None, f"the process hangs:\n{self.output}"
        return self._process.exitcode

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.join()

    def workers(self) -> list[psutil.Process]:
        """Its worker processes: those of loky, and those that were forked to read images."""
        workers = []
        with suppress(psutil.Error):
            main = psutil.Process(self.pid)
            for child in main.children(recursive=True):
                with suppress(psutil.Error):  # it has just ended; the others count
                    line = child.cmdline()
                    if "LokyProcess" in " ".join(line) or line == main.cmdline():
                        workers.append(child)
        return workers


def _run(arguments: list[str], log: Path, before: Callable[[], None]) -> None:
    """Do in this process what the command ``kedro`` does, to its very end."""
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(PROJECT)
    sys.argv = ["kedro", *arguments]
    multiprocessing.set_start_method(None, force=True)  # its workers are started as in any run
    before()
    from kedro.framework.cli import main

    try:
        main()
    finally:
        threading._shutdown()  # as the interpreter ends, in its order; a forked process would leave it out
        atexit._run_exitfuncs()


@dataclass(frozen=True)
class Project:
    """A folder of outputs; the raw images beside it are shared."""

    out: Path

    def start(self, *stages: str, more: str = "", before: Callable[[], None] = nothing) -> Process:
        """Start some stages, or all."""
        few = ",n_seeds=1,known_class=spot" if not stages or "runs" in stages else ""  # elsewhere without an effect
        parameters = f"data_root={self.out.parent / 'raw'},output_root={self.out}{few}{more}"
        tags = [f"--tags={','.join(STAGES[stage].tags for stage in stages)}"] if stages else []
        arguments = ["run", "--env=test", "--pipelines=hard_setting", *tags, f"--params={parameters}"]
        return Process(arguments, self.out.parent / f"{self.out.name}{len(STARTED)}.txt", before)

    def run(self, *stages: str, before: Callable[[], None] = nothing) -> str:
        """Run stages, which must succeed; returns what was written."""
        process = self.start(*stages, before=before)
        assert process.wait() == 0, process.output
        return process.output

    def copy_before(self, stage: str, out: Path) -> Project:
        """A copy of this finished project, without what a stage, if any, and the later ones have made."""
        subprocess.run(["cp", "--archive", f"{self.out}/.", str(out)], check=True)
        for path in Project(out)._made_from(stage) if stage else ():
            if path.is_file():
                path.unlink()
        return Project(out)

    def _made_from(self, stage: str) -> set[Path]:
        """What a stage and the later ones have made."""
        later = list(STAGES)[list(STAGES).index(stage) :]
        return {path for name in later for pattern in STAGES[name].made for path in self.out.glob(pattern)}

    def results(self, stage: str = "reporting") -> dict[str, str]:
        """Digests of what was decided up to the end of a stage; of features by row, as parts may be cut elsewhere."""
        later = [*STAGES][[*STAGES].index(stage) + 1 :]
        left_out = self._made_from(later[0]) if later else set()
        files = sorted({file for pattern in DECIDED for file in self.out.glob(pattern)} - left_out)
        contents = {str(file.relative_to(self.out)): file.read_bytes() for file in files if file.name[0] != "."}
        for name in ("pooled", "maps") if stage not in ("ingestion", "audit", "runs") else ():
            rows: dict[str, np.ndarray] = {}
            for file in self.out.glob("04_feature/store/*/*.keys.txt"):
                numbers = np.load(file.with_name(file.name.replace("keys.txt", f"{name}.npy")))
                rows |= dict(zip(read_keys(file), numbers, strict=True))
            contents[f"features {name}"] = b"".join(rows[key].tobytes() for key in sorted(rows))
        return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
