"""Processes that are killed, full disks, lost permissions, damaged files: the next start gives the same results.

``make faults`` tries every fault in every stage and every damage of every stored file; without FAULTS=all, tests do
this where a fault costs most.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from faults.project import PROJECT, STAGES, STARTED, Process, Project

EVERYTHING = os.environ.get("FAULTS") == "all"
WITH_WORKERS = ("features", "prototypes", "training", "calibration", "scoring")
OVERRIDES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
DROP_FROM_BOUNDING_SET, CAPABILITIES_VERSION = 24, 0x20080522  # of Linux
WEIGHTS = PROJECT / "data/01_raw/weights/resnet18.safetensors"
DISK, ROOM = 64 << 20, 12 << 10  # bytes of a small disk, and those left for a lock and the name of the run
DAMAGES = ("cut", "empty", "flipped")
BEFORE_RESULTS = ("store.json", "00000.pooled.npy", "00000.maps.npy", "00000.keys.txt")


@pytest.fixture(scope="module")
def whole() -> Iterator[Project]:
    """A finished run without faults."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    project = Project(folder / "whole")
    try:
        project.run()
        shutil.rmtree(project.out / "locks")
        yield project
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def folder(whole: Project, request: pytest.FixtureRequest) -> Iterator[Path]:
    """For the outputs of one test; whatever was started ends with it."""
    out = whole.out.with_name(re.sub(r"\W+", "_", request.node.name))
    yield out
    for process in STARTED:
        process.end()
    STARTED.clear()
    shutil.rmtree(out, ignore_errors=True)


def refused(process: Process) -> str:
    """The one clear message that a run ends with, which names each failed task in a line of its own."""
    code, output = process.wait(), process.output
    assert code == 1, f"exit code {code}:\n{output}"
    assert "Traceback" not in output, output
    _, *messages = f"\n{output}".split("\nError: ")
    assert len(messages) == 1, output
    return messages[0]


def until(condition: Callable[[], object], process: Process) -> None:
    began = time.monotonic()
    while not condition() and process.is_running():
        assert time.monotonic() - began < 600, process.output
        time.sleep(0.05)


def at_first_write(act: Callable[[], None]) -> None:
    """In a started process, act when a result is about to get its name; of features, the second part."""
    from mpfm_kedro.backbones import store

    store.PART_SECONDS = 0  # one part per batch
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_file() and not path.name.endswith(BEFORE_RESULTS):
            act()
        sync(descriptor)

    os.fsync = fsync  # type: ignore[assignment]


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(file: Path) -> None:
    file.with_suffix(".waiting").touch()
    while not file.exists():
        time.sleep(0.05)


def obey_permissions() -> None:
    """Take from a started process, and from its workers, the capabilities with which root writes everywhere."""
    system = ctypes.CDLL(None, use_errno=True)
    for capability in OVERRIDES if os.geteuid() == 0 else ():
        assert system.prctl(DROP_FROM_BOUNDING_SET, capability, 0, 0, 0) == 0
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: first the lower halves
    assert system.capget(header, sets) == 0
    for number in range(3):
        sets[number] &= ~sum(1 << capability for capability in OVERRIDES)
    assert system.capset(header, sets) == 0, os.strerror(ctypes.get_errno())


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


# faults


def main_killed(whole: Project, stage: str, out: Path) -> Project:
    """In the middle of writing: numbers without keys, a file without its name."""
    project = whole.copy_before(stage, out)
    process = project.start(stage, before=partial(at_first_write, kill_this_process))
    assert process.wait() == -signal.SIGKILL, process.output
    return project


def worker_killed(whole: Project, stage: str, out: Path) -> Project:
    project, go = whole.copy_before(stage, out), out / "go"
    if stage == "features":  # quick: it waits at its second batch
        stop = partial(at_first_write, partial(wait_for, go))
        process = project.start(stage, more=",features.workers=1", before=stop)
        until(go.with_suffix(".waiting").exists, process)
    else:
        process = project.start(stage)
    working: list[psutil.Process] = []

    def works() -> bool:
        for worker in process.workers():
            with suppress(psutil.NoSuchProcess):  # a fork that has just ended was not a worker
                if stage == "features" or sum(worker.cpu_times()[:2]) > 1:
                    working.append(worker)
        return bool(working)

    until(works, process)
    working[0].kill()
    go.touch()
    assert "worker process was killed" in refused(process)
    return project


def two_processes(whole: Project, stage: str, out: Path) -> Project:
    """A stage is started again while it is at work in the same folder."""
    project, go = whole.copy_before(stage, out), out / "go"
    first = project.start(stage, before=partial(at_first_write, partial(wait_for, go)))
    until(go.with_suffix(".waiting").exists, first)
    second = project.start(stage)
    until(lambda: "Waiting for another process" in second.output, second)
    go.touch()
    assert first.wait() == 0, first.output
    if second.wait() != 0:
        assert f"process {first.pid}" in refused(second)
    return project


def disk_full(whole: Project, stage: str, out: Path) -> Project:
    project, filler = whole.copy_before(stage, out), out / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(out).free - ROOM)
    line = refused(project.start(stage))
    assert str(out) in line and "are free" in line, line
    filler.unlink()
    return project


def permission_lost(whole: Project, stage: str, out: Path) -> Project:
    project = whole.copy_before(stage, out)
    target = out / STAGES[stage].target
    target.mkdir(parents=True, exist_ok=True)
    target.chmod(0o555)
    line = refused(project.start(stage, before=obey_permissions))
    assert str(target) in line and "ermission denied" in line, line
    target.chmod(0o755)
    return project


FAULTS = {
    main_killed: (("features", "training"), STAGES),
    worker_killed: (("features", "prototypes"), WITH_WORKERS),
    two_processes: (("runs",), STAGES),
    disk_full: (("features", "evaluation"), STAGES),
    permission_lost: (("runs",), STAGES),
}


@pytest.mark.parametrize(
    ("fault", "stage"),
    [(fault, stage) for fault, (some, every) in FAULTS.items() for stage in (every if EVERYTHING else some)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_disturbed_stage_loses_nothing(fault, stage, whole: Project, folder: Path):
    with small_disk(folder) if fault is disk_full else nullcontext():
        project = fault(whole, stage, folder)
        project.run(stage)
        assert project.results(stage) == whole.results(stage)


# damaged files


def harm(file: Path, damage: str) -> bytes:
    """Cut a file in half, empty it, or change one bit; returns what is left."""
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 0x10 * (damage == "flipped")
    content = content[: {"empty": 0, "cut": len(content) // 2}.get(damage)]
    file.write_bytes(content)
    return bytes(content)


def with_cached_weights(out: Path) -> None:
    """In a started process, cache weights in the output folder, and obtain them from the project without a network."""
    from mpfm_kedro.backbones import weights
    from mpfm_kedro.backbones.origins import read_tensors

    obtain = weights.obtain_weights
    origins = {"the project": lambda *_: (read_tensors(WEIGHTS), str(WEIGHTS))}
    weights.obtain_weights = lambda name, *_: obtain(name, out / "weights", None, origins)  # type: ignore[assignment]


@pytest.mark.parametrize("damage", DAMAGES if EVERYTHING else ["cut"])
def test_files_of_a_memory_are_named_and_rebuilt(damage: str, whole: Project, folder: Path):
    project = whole.copy_before("features", folder)
    subprocess.run(
        ["cp", "--archive", f"{whole.out}/06_models", str(folder)], check=True
    )  # the features alone are gone
    (folder / "weights").mkdir()
    shutil.copy2(WEIGHTS, folder / "weights")
    patterns = ["weights/*", "02_intermediate/synthetic/files.parquet"]  # with a checksum
    if damage != "flipped":
        patterns += [f"{STAGES[stage].target}/*" for stage in ("prototypes", "training", "calibration", "scoring")]
    left = {min(folder.glob(pattern)): damage for pattern in patterns}
    left = {file: harm(file, damage) for file in left}
    shown = project.run(before=partial(with_cached_weights, folder))
    assert [file for file, content in left.items() if file.name not in shown or file.read_bytes() == content] == []
    assert project.results() == whole.results()


class Kind(NamedTuple):
    """A kind of stored file that another stage reads than the one that makes it; the first one is damaged."""

    pattern: str
    maker: str
    reader: str
    damages: tuple[str, ...] = DAMAGES
    deleted: str = ""  # first, so that the file is really read


KINDS = {
    "feature maps": Kind("04_feature/store/*/00000.maps.npy", "features", "features", ("cut", "empty")),
    "keys of features": Kind("04_feature/store/*/00000.keys.txt", "features", "features", ("empty", "cut")),
    "fit": Kind("06_*/*/calibration/*", "calibration", "scoring", ("cut", "empty"), "06_*/*/scores/*"),
    "sample table": Kind("02_intermediate/synthetic/samples.parquet", "ingestion", "features"),
    "run table": Kind("05_model_input/synthetic/hard/runs.parquet", "runs", "prototypes"),
    "trial table": Kind("06_models/synthetic/hard/models.parquet", "calibration", "scoring"),
    "score table": Kind("07_model_output/synthetic/hard/scores.parquet", "scoring", "evaluation"),
}
READ_ALIKE = {"run table", "trial table"}  # as the sample table


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        (kind, damage)
        for kind in KINDS
        if EVERYTHING or kind not in READ_ALIKE
        for damage in KINDS[kind].damages[: None if EVERYTHING else 1]
    ],
)
def test_a_damaged_file_of_another_stage_is_named_in_one_line(kind: str, damage: str, whole: Project, folder: Path):
    pattern, maker, reader, _, deleted = KINDS[kind]
    project = whole.copy_before("", folder)
    for path in folder.glob(deleted) if deleted else ():
        path.unlink()
    file = min(folder.glob(pattern))
    harm(file, damage)
    line = refused(project.start(reader))
    assert str(file) in line, line
    if advice := re.search(r"delete (\S+) and start again", line):
        Path(advice[1]).unlink()
    project.run(*dict.fromkeys((maker, reader)))
    assert project.results() == whole.results()
