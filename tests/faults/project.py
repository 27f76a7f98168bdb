"""The stages of the hard setting on synthetic images, each run as a process of its own that can be disturbed.

Processes are forked from this one after all imports, so that one of them costs little. This process never runs a
pipeline itself.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import torch

PROJECT = Path(__file__).parents[2]
FEW = "n_seeds=1,known_class=spot"
STAGES = ("ingestion", "audit", "features", "runs", "prototypes", "training", "scoring", "evaluation", "reporting")
OF_ALL_STUDIES = STAGES[:3]
WITH_WORKERS = ("prototypes", "training", "scoring")
SECONDS = 1200  # after which a process is believed to hang
# where each stage writes first, below the output folder
TARGETS = {
    "ingestion": "02_intermediate/synthetic",
    "audit": "08_reporting/synthetic",
    "features": "04_feature/store",
    "runs": "05_model_input/synthetic/hard",
    "prototypes": "cache/models",
    "training": "cache/models",
    "scoring": "cache/models",
    "evaluation": "08_reporting/synthetic/hard",
    "reporting": "08_reporting/synthetic/hard",
}


# what each stage makes, as ``results`` names it
MADE = {
    "ingestion": "02_intermediate/",
    "audit": "08_reporting/synthetic/audit.csv",
    "features": "features ",
    "runs": "05_model_input/",
    "prototypes": "06_models/synthetic/hard/initial_models/",
    "training": "06_models/synthetic/hard/models/",
    "scoring": "07_model_output/synthetic/hard/scores.parquet",
    "evaluation": "08_reporting/synthetic/hard/summary.csv",
    "reporting": "08_reporting/synthetic/hard/",
}


STARTED: list[Process] = []


def end_all() -> None:
    """Kill what still runs of all that was started, after a test that failed."""
    for process in STARTED:
        if process.is_running():
            process.kill()
            process.wait()
    STARTED.clear()


@dataclass
class Process:
    """A forked process; ``output`` is what it has written."""

    pid: int
    log: Path
    code: int | None = None
    begun: float = field(default_factory=time.monotonic)

    @property
    def output(self) -> str:
        """Standard output and errors so far."""
        return self.log.read_text(errors="replace")

    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if ended else None
        return self.code is None

    def wait(self) -> int:
        """Its exit code; the negative signal if it was killed."""
        while self.is_running():
            if time.monotonic() - self.begun > SECONDS:
                self.kill()
                raise AssertionError(f"the process hangs:\n{self.output}")
            time.sleep(0.05)
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        """End it as a machine without memory does."""
        os.kill(self.pid, signal.SIGKILL)

    def workers(self) -> list[psutil.Process]:
        """Its worker processes that are at work."""
        try:
            found = psutil.Process(self.pid).children(recursive=True)
            return [worker for worker in found if "LokyProcess" in " ".join(worker.cmdline())]
        except psutil.Error:
            return []


def start(arguments: Sequence[str], log: Path, before: Callable[[], None] = lambda: None) -> Process:
    """``kedro`` with these arguments, in a process forked from this one; ``before`` is called in it first."""
    _import_all()
    log.touch()
    if pid := os.fork():
        STARTED.append(Process(pid, log))
        return STARTED[-1]
    try:  # from here on in the new process
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.chdir(PROJECT)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        for handler in logging.root.handlers:  # Kedro has made them in the process that this one was forked from
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(sys.stderr)
        sys.argv = ["kedro", *arguments]
        before()
        from kedro.framework.cli import main

        main()
        os._exit(0)
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(70)


def _import_all() -> None:
    """Everything that is slow to import, once, before the first fork."""
    for module in ("cli", "experiments.fitting", "inspection.production", "pipeline_registry"):
        import_module(f"mpfm_kedro.{module}")
    import_module("matplotlib.pyplot")
    assert torch.get_num_threads() == 1, "a forked process must not inherit threads: set OMP_NUM_THREADS=1"


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
        names = [stage if stage in OF_ALL_STUDIES else f"{setting}.{stage}" for stage in stages]
        parameters = f"data_root={self.folder / 'raw'},output_root={self.out},{FEW}{more}"
        chosen = [f"--namespaces={','.join(names)}"] if names else []
        return ["run", "--env=test", f"--pipelines={setting}_setting", *chosen, f"--params={parameters}"]

    def start(
        self,
        *stages: str,
        setting: str = "hard",
        more: str = "",
        name: str = "log",
        before: Callable[[], None] = lambda: None,
    ) -> Process:
        """Start stages."""
        return start(self.arguments(stages, setting, more), self.folder / f"{name}.txt", before)

    def run(self, *stages: str, **options: str) -> str:
        """Run stages, which must succeed; returns what was written."""
        process = self.start(*stages, **options)  # type: ignore[arg-type]
        assert process.wait() == 0, process.output
        return process.output

    def copy_from(self, other: Project) -> Project:
        """Put a copy of another project's outputs here, beside a link to its raw images."""
        self.folder.mkdir(parents=True, exist_ok=True)
        raw = self.folder / "raw"
        if not raw.exists():
            raw.symlink_to((other.folder / "raw").resolve(), target_is_directory=True)
        shutil.copytree(other.out, self.out, dirs_exist_ok=True)
        return self


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
    for file in sorted(out.glob("06_models/*/*/*models/*.safetensors")):
        content = file.read_bytes()
        tensors = content[8 + int.from_bytes(content[:8], "little") :]
        found[str(file.relative_to(out))] = hashlib.sha256(tensors).hexdigest()
    for file in out.glob("04_feature/store/*/keys.txt"):
        keys = file.read_text().splitlines()
        rows = {key: row for row, key in enumerate(keys)}
        for name in ("pooled.f32", "maps.f16"):
            table = np.fromfile(file.with_name(name), np.uint8).reshape(len(keys), -1)
            content = b"".join(table[rows[key]].tobytes() for key in sorted(rows))
            found[f"features {name}"] = hashlib.sha256(content).hexdigest()
    return found


def _of_table(table: pd.DataFrame) -> str:
    return hashlib.sha256(table.drop(columns="seconds", errors="ignore").to_csv(index=False).encode()).hexdigest()


def assert_same(out: Path, expected: dict[str, str]) -> None:
    """All results that are there must be the expected ones, and none may be missing."""
    found = results(out)
    assert found.keys() >= expected.keys(), sorted(expected.keys() - found.keys())
    assert {name for name in expected if found[name] != expected[name]} == set()
