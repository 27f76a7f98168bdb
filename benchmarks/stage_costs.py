"""Time, memory and disk of every stage of a ``kedro run`` that is watched from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import yaml

# the stages of a setting, with their nodes
STAGES = {
    "ingestion": ("list_samples", "check_images", "split_normals"),
    "audit": ("audit_samples",),
    "features": ("extract_features",),
    "runs": ("draw_runs",),
    "prototypes": ("initialise_prototypes",),
    "training": ("train_mpfm",),
    "calibration": ("calibrate_scores",),
    "scoring": ("score_images",),
    "evaluation": ("evaluate",),
    "reporting": ("describe_models", "draw_figures", "write_report"),
}
MEASURES = ("seconds", "processor", "memory", "disk")
START, WHOLE = "start and end", "whole run"
COMPLETED, LOADING = "Completed node: ", "Loading data from"
SECONDS_BETWEEN_SAMPLES = 0.5  # a sample of large processes takes some milliseconds
OWN_MEMORY = ("Pss_Anon:", "Pss_Shmem:")  # not files that are mapped: the system takes their pages back on demand


class Period(NamedTuple):
    """A stage at work, until ``end`` in seconds since the epoch."""

    stage: str
    end: float


class Sample(NamedTuple):
    """A process and its children at a moment: bytes of memory, and seconds of processors until then."""

    moment: float
    memory: int
    processor: float


def run_measured(arguments: list[str], out: Path, log: Path) -> dict[str, Any]:
    """Run ``kedro`` with some arguments; returns what each stage costs, by its name.

    Args:
        arguments: of the command.
        out: the output folder, empty at first.
        log: the file for all that the command writes.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = node_logging(Path(folder) / "logging.yml")
        process = subprocess.Popen(
            [sys.executable, "-m", "kedro", *arguments],
            env=os.environ | {"KEDRO_LOGGING_CONFIG": str(settings)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        began = time.time()
        with watched(process) as samples:
            periods = list(read_periods(process, log))
    if process.returncode:
        raise SystemExit(f"kedro {' '.join(arguments)} ended with code {process.returncode}; see {log}")
    return {"stages": costs(began, periods, samples, out), "auc": first_auc(out)}


def node_logging(file: Path) -> Path:
    """The project's logging, in which Kedro also tells when it loads data and when a node is done."""
    settings = yaml.safe_load(Path("conf/logging.yml").read_text(encoding="utf-8"))
    settings["loggers"] |= {"kedro.runner": {"level": "INFO"}, "kedro.io": {"level": "INFO"}}
    file.write_text(json.dumps(settings), encoding="utf-8")
    return file


def read_periods(process: subprocess.Popen[str], log: Path) -> Iterator[Period]:
    """Which stage was at work until when: all time before a node is done belongs to its stage."""
    assert process.stdout is not None
    started = False
    with log.open("w", encoding="utf-8") as file:
        for line in process.stdout:
            moment = time.time()
            file.write(line)
            file.flush()
            if LOADING in line and not started:  # imports, parameters and pipelines are done
                started = True
                yield Period(START, moment)
            if COMPLETED in line:
                yield Period(stage_of(line.partition(COMPLETED)[2].strip()), moment)
    yield Period(START, time.time())  # what Python does at its end


def stage_of(node: str) -> str:
    """The stage that a node belongs to."""
    return next(stage for stage, nodes in STAGES.items() if node in nodes)


@contextmanager
def watched(process: subprocess.Popen[str]) -> Iterator[list[Sample]]:
    """Samples of a process and its children, complete after the block, which ends with the process."""
    samples: list[Sample] = []
    watcher = threading.Thread(target=watch, args=(psutil.Process(process.pid), samples), daemon=True)
    watcher.start()
    yield samples
    process.wait()
    watcher.join()


def watch(process: psutil.Process, samples: list[Sample]) -> None:
    """Take samples until the process has ended."""
    with suppress(psutil.Error):  # it may end between any two questions
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            family = [process, *process.children(recursive=True)]
            samples.append(Sample(time.time(), sum(map(memory_of, family)), sum(map(processor_seconds, family))))
            time.sleep(SECONDS_BETWEEN_SAMPLES)


def memory_of(process: psutil.Process) -> int:
    """Bytes of one process, with its part of what it shares with others; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(OWN_MEMORY))


def processor_seconds(process: psutil.Process) -> float:
    """Processor time of one process and of its children that have ended; other work hardly changes it."""
    try:
        used = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(used.user + used.system + used.children_user + used.children_system)


def costs(began: float, periods: list[Period], samples: list[Sample], out: Path) -> dict[str, dict[str, float]]:
    """Seconds, those of processors, peak memory and disk of each stage, and of the whole run."""
    samples = samples or [Sample(began, 0, 0.0)]  # a run may end before the first one
    found = {name: dict.fromkeys(MEASURES, 0.0) for name in (*STAGES, START)}
    files = {(status.st_dev, status.st_ino): status for status in map(os.stat, out.rglob("*"))}.values()
    moments = np.array([sample.moment for sample in samples])
    for stage, end in periods:
        own = found[stage]
        first, last = (max(0, int(place) - 1) for place in np.searchsorted(moments, [began, end]))
        own["seconds"] += end - began
        own["processor"] += max(0.0, samples[last].processor - samples[first].processor)
        own["memory"] = max([own["memory"], *(sample.memory for sample in samples[first : last + 1])])
        own["disk"] += sum(512 * status.st_blocks for status in files if began <= status.st_ctime < end)
        began = end
    whole = {name: sum(own[name] for own in found.values()) for name in MEASURES}
    return found | {WHOLE: whole | {"memory": max(sample.memory for sample in samples)}}


def first_auc(out: Path) -> float:
    """The AUC in the first line of the summary, a sign that the run did what it should."""
    header, line = (out / "08_reporting/growth/general/summary.csv").read_text().splitlines()[:2]
    return float(dict(zip(header.split(","), line.split(","), strict=True))["auc_mean"])
