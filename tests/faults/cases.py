"""Faults: what is done to a stage or a file, and what must be true afterwards.

Every case ends with the same results as an undisturbed run, or it raises. It returns what happened, in short.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
from kedro.framework.hooks import hook_impl
from kedro.pipeline import Pipeline
from kedro.pipeline.node import Node

from faults.project import (
    FITS,
    MADE,
    PROJECT,
    STAGES,
    TARGETS,
    WITH_WORKERS,
    Process,
    Project,
    assert_same,
    copy,
    refused,
    results,
)

OVERRIDES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
DROP_FROM_BOUNDING_SET, CAPABILITIES_VERSION = 24, 0x20080522  # of Linux
WEIGHTS = PROJECT / "data/01_raw/weights/resnet18.safetensors"
DAY = 86_400
ROOM = 12 << 10  # bytes that a full disk has left: for a lock and the name of the run
DISK = 64 << 20
# files that a stage writes before it has a result
FIRST_PART = ("00000.pooled.npy", "00000.maps.npy", "00000.keys.txt")
BEFORE_RESULTS = ("store.json", *FIRST_PART)


class NotHereError(Exception):
    """A fault that cannot be made on this machine; says why."""


@dataclass
class Undisturbed:
    """A run without faults: the outputs before each stage, and the results after it."""

    folder: Path
    before: dict[str, Project] = field(default_factory=dict)
    results: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path) -> Undisturbed:
        """Run all stages once, with a copy of the outputs after each."""
        project = Project(folder / "undisturbed")
        project.folder.mkdir(parents=True)
        process = project.start(before=partial(_copy_after_each_stage, project))
        assert process.wait() == 0, process.output
        copy(project.out, folder / f"after_{list(STAGES)[-1]}/out")
        found = cls(folder)
        (folder / "empty/out").mkdir(parents=True)
        (folder / "empty/raw").symlink_to(project.folder / "raw")
        earlier = Project(folder / "empty")
        for stage in STAGES:
            found.before[stage], earlier = earlier, Project(folder / f"after_{stage}")
            (earlier.folder / "raw").symlink_to(project.folder / "raw")
            made = tuple(
                MADE[one] for one in list(STAGES)[: list(STAGES).index(stage) + 1]
            )  # nodes of later stages may be first
            found.results[stage] = {
                name: value for name, value in results(earlier.out).items() if name.startswith(made)
            }
        found.before["end"] = earlier
        return found

    def project(self, stage: str, name: str) -> Project:
        """A new project in which everything before a stage is done."""
        return Project(self.folder / name).copy_from(self.before[stage])


def _copy_after_each_stage(project: Project) -> None:
    """In this process, copy the outputs after each stage."""
    from mpfm_kedro import settings

    settings.HOOKS += (CopyAfterEachStage(project),)  # type: ignore[assignment]


class CopyAfterEachStage:
    """Copies the outputs when the first node of another stage begins: all before is saved then."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._remaining: Counter[str] = Counter()
        self._done: list[str] = []

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline) -> None:
        self._remaining = Counter(map(_stage_of, pipeline.nodes))

    @hook_impl
    def before_node_run(self) -> None:
        for stage in self._done:
            target = self._project.folder.with_name(f"after_{stage}") / "out"
            copy(self._project.out, target)
            shutil.rmtree(target / "locks")  # of this process
        self._done.clear()

    @hook_impl
    def after_node_run(self, node: Node) -> None:
        stage = _stage_of(node)
        self._remaining[stage] -= 1
        if not self._remaining[stage]:
            self._done.append(stage)


def _stage_of(node: Node) -> str:
    return next(stage for stage, tags in STAGES.items() if node.tags & {*tags.split(",")})


# processes


def kill_main(base: Undisturbed, stage: str, name: str) -> str:
    """The main process is killed in the middle of writing: numbers without keys, a file without its name."""
    project = base.project(stage, name)
    process = project.start(stage, before=partial(_at_first_write, _kill_self))
    assert process.wait() == -signal.SIGKILL, process.output
    return _resumed(base, project, stage)


def kill_main_at_work(base: Undisturbed, stage: str, name: str) -> str:
    """The main process is killed while a worker computes; the worker ends, too."""
    project = base.project(stage, name)
    process, worker = _started_with_worker(project, stage)
    process.kill()
    process.wait()
    worker.wait(60)
    return _resumed(base, project, stage)


def kill_worker(base: Undisturbed, stage: str, name: str) -> str:
    """A worker process is killed."""
    project = base.project(stage, name)
    process, worker = _started_with_worker(project, stage)
    worker.kill()
    (project.folder / "go").touch()
    assert "worker process was killed" in refused(process)
    return "one line; " + _resumed(base, project, stage)


def kill_dask_worker(base: Undisturbed, stage: str, name: str) -> str:
    """The only worker of a Dask cluster is killed while it computes; its nanny starts another one."""
    project = base.project(stage, name)
    with _dask(stage, project) as (address, _, nanny):
        process = project.start(stage, more=f",compute.dask_scheduler={address}")
        _dask_worker_at_work(process, nanny).kill()
        assert process.wait() == 0, process.output
    assert_same(project.out, base.results[stage])
    return "survived, equal results"


def kill_dask_scheduler(base: Undisturbed, stage: str, name: str) -> str:
    """The scheduler of a Dask cluster is killed while a worker computes."""
    project = base.project(stage, name)
    with _dask(stage, project) as (address, scheduler, nanny):
        process = project.start(stage, more=f",compute.dask_scheduler={address}")
        _dask_worker_at_work(process, nanny)
        scheduler.kill()
        assert "scheduler" in refused(process)
    return "one line; " + _resumed(base, project, stage)


def two_processes(base: Undisturbed, stage: str, name: str) -> str:
    """The same stage is started again while it is at work in the same folder."""
    project = base.project(stage, name)
    first = project.start(stage, before=partial(_at_first_write, partial(_wait_for, project.folder / "go")))
    _until(lambda: (project.folder / "go.waiting").exists() or not first.is_running(), first)
    second = project.start(stage, name="second")
    _until(lambda: not second.is_running() or "Waiting for another process" in second.output, second)
    (project.folder / "go").touch()
    assert first.wait() == 0, first.output
    if second.wait() == 0:
        outcome = "both end" if "Waiting" not in second.output else "the second waits"
    else:
        assert f"process {first.pid}" in refused(second)
        outcome = "the second is refused with one line"
    assert_same(project.out, base.results[stage])
    return f"{outcome}, equal results"


# the machine


def disk_full(base: Undisturbed, stage: str, name: str) -> str:
    """The disk fills while the stage writes; then there is room again."""
    project = Project(base.folder / name)
    with _small_disk(project.out) as fill:
        project.copy_from(base.before[stage])
        fill()
        line = refused(project.start(stage))
        assert str(project.out) in line and "are free" in line, line
        (project.out / "filler").unlink()
        return "one line with needed and free bytes; " + _resumed(base, project, stage)


def permission_lost(base: Undisturbed, stage: str, name: str) -> str:
    """The folder that the stage writes to may not be written; then it may again."""
    project = base.project(stage, name)
    target = project.out / TARGETS[stage]
    target.mkdir(parents=True, exist_ok=True)
    locked = [target, *(path for path in target.iterdir() if path.is_dir() and stage == "features")]
    for path in locked:
        path.chmod(0o555)
    line = refused(project.start(stage, before=_obey_permissions))
    assert str(target) in line and "ermission denied" in line, line
    for path in locked:
        path.chmod(0o755)
    return "one line; " + _resumed(base, project, stage)


def clock_set_back(base: Undisturbed, stage: str, name: str) -> str:
    """All files are of tomorrow, and the process believes that it is yesterday."""
    project = base.project(stage, name)
    tomorrow = time.time() + DAY
    for path in project.out.rglob("*"):
        os.utime(path, (tomorrow, tomorrow))
    process = project.start(stage, before=_turn_clock_back)
    assert process.wait() == 0, process.output
    assert_same(project.out, base.results[stage])
    return "equal results"


PROCESS_FAULTS: dict[str, Callable[[Undisturbed, str, str], str]] = {
    "kill -9 of the main process while it writes": kill_main,
    "kill -9 of the main process while a worker computes": kill_main_at_work,
    "kill -9 of a worker": kill_worker,
    "kill -9 of a Dask worker": kill_dask_worker,
    "kill -9 of the Dask scheduler": kill_dask_scheduler,
    "two processes in one folder": two_processes,
    "disk full": disk_full,
    "permission lost": permission_lost,
    "clock set back": clock_set_back,
}


# files


def _in_workers(out: Path) -> None:
    """Tasks run in worker processes as ever, and read the file."""


def _alone(out: Path) -> None:
    """In this process, do the work of its workers: they take longest to start, and do not read the file."""
    from contextlib import nullcontext

    from mpfm_kedro import compute

    compute.processes = lambda function, *_: nullcontext(compute.this_process(function))  # type: ignore[assignment]


@dataclass(frozen=True)
class Kind:
    """A kind of stored file.

    Args:
        pattern: finds files of the kind below the output folder; the first is damaged.
        stages: that read it, run afterwards.
        repair: stages that make it again where the former refuse it.
        without: files that are deleted first, so that the file is really read.
        before: called in each process with the output folder, before its command.
        has_checksum: without one a flipped bit is not noticed.
    """

    pattern: str
    stages: tuple[str, ...]
    repair: tuple[str, ...] = ()
    without: str = ""
    before: Callable[[Path], None] = _alone
    has_checksum: bool = True


def _own_weights(out: Path) -> None:
    """In this process, cache weights in the output folder, and obtain them from the project without a network."""
    from mpfm_kedro.backbones import weights
    from mpfm_kedro.backbones.origins import Origin, read_tensors

    obtain = weights.obtain_weights
    origin = Origin("the project", lambda *_: (read_tensors(WEIGHTS), str(WEIGHTS)))
    weights.obtain_weights = lambda name, *_: obtain(name, out / "weights", None, [origin])  # type: ignore[assignment]


KINDS = {
    "feature maps": Kind("04_feature/store/*/00000.maps.npy", ("features",), has_checksum=False),
    "pooled features": Kind("04_feature/store/*/00000.pooled.npy", ("features",), has_checksum=False),
    "keys of features": Kind("04_feature/store/*/00000.keys.txt", ("features",), has_checksum=False),
    "weights": Kind("weights/resnet18.safetensors", ("features",), without="04_feature/store/*/*", before=_own_weights),
    **{
        f"fit of {stage}": Kind(f"06_models/synthetic/{stage}/*.safetensors", (stage,), has_checksum=False)
        for stage in FITS
    },
    "scores of one detector": Kind("06_models/synthetic/scores/*.safetensors", ("scoring",), has_checksum=False),
    "fit that scoring reads": Kind(
        "06_models/synthetic/calibration/*.safetensors",
        ("scoring",),
        ("calibration", "scoring"),
        without="06_models/synthetic/scores/*",
        before=_in_workers,
        has_checksum=False,
    ),
    "what is known of image files": Kind("02_intermediate/synthetic/files.parquet", ("ingestion",)),
    "thumbnail": Kind("02_intermediate/synthetic/thumbnails/*.png", ("audit",)),
    "sample table": Kind("02_intermediate/synthetic/samples.parquet", ("features",), ("ingestion", "features")),
    "table of views": Kind("04_feature/synthetic/features.parquet", ("prototypes",), ("features", "prototypes")),
    "run table": Kind("05_model_input/synthetic/hard/runs.parquet", ("prototypes",), ("runs", "prototypes")),
    "trial table": Kind("06_models/synthetic/hard/models.parquet", ("scoring",), ("calibration", "scoring")),
    "score table": Kind("07_model_output/synthetic/hard/scores.parquet", ("evaluation",), ("scoring", "evaluation")),
}


def flip(file: Path) -> None:
    """Change one bit."""
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 0x10
    file.write_bytes(content)


def flip_silently(file: Path) -> None:
    """Change one bit as an ageing disk does: the date of the file stays."""
    found = file.stat()
    flip(file)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def cut(file: Path) -> None:
    """Keep the first half."""
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    """Keep nothing."""
    os.truncate(file, 0)


DAMAGES = {"flipped bit": flip, "flipped bit, date kept": flip_silently, "cut": cut, "empty": empty}


def damage(base: Undisturbed, kind: str, how: str, name: str) -> str:
    """A stored file is damaged, then read."""
    known = KINDS[kind]
    project = base.project("end", name)
    before = partial(known.before, project.out)
    if known.before == _own_weights:
        (project.out / "weights").mkdir()
        shutil.copy2(WEIGHTS, project.out / "weights")
    for path in project.out.glob(known.without) if known.without else ():
        path.unlink()
    file = sorted(project.out.glob(known.pattern))[0]
    DAMAGES[how](file)
    damaged = file.read_bytes()
    process = project.start(*known.stages, before=before)
    expected = base.results[known.stages[-1]]
    if process.wait() == 0:
        named = file.name in process.output or str(file.parent) in process.output
        assert_same(project.out, expected)
        if file.read_bytes() == damaged:
            return "not read, equal results"
        return "named and rebuilt, equal results" if named else "rebuilt, equal results"
    line = refused(process)
    assert str(file.parent) in line, line
    if advice := re.search(r"delete (\S+) and start again", line):
        Path(advice[1]).unlink()
    repaired = project.run(*(known.repair or known.stages), before=before)
    assert_same(project.out, expected)
    return "named in one line; the next start rebuilds it" + (" and names it" if file.name in repaired else "")


# how faults are made


def _resumed(base: Undisturbed, project: Project, stage: str) -> str:
    project.run(stage)
    assert_same(project.out, base.results[stage])
    return "the next start resumes, equal results"


def _at_first_write(act: Callable[[], None]) -> None:
    """In this process, act when a result is about to be put on the disk under its name, of features the second part."""
    from mpfm_kedro.backbones import store

    store.PART_SECONDS = 0  # one part per batch
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_file() and not path.name.endswith(BEFORE_RESULTS):
            act()
        sync(descriptor)

    os.fsync = fsync  # type: ignore[assignment]


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for(file: Path) -> None:
    file.with_suffix(".waiting").touch()
    while not file.exists():
        time.sleep(0.05)


def _until(condition: Callable[[], bool], process: Process) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 600, process.output
        time.sleep(0.05)


def _started_with_worker(project: Project, stage: str) -> tuple[Process, psutil.Process]:
    """A started stage, and a worker of it that has begun to work."""
    if stage == "features":  # quick: it waits at its second batch
        stop = partial(_at_first_write, partial(_wait_for, project.folder / "go"))
        process = project.start(stage, more=",features.workers=1", before=stop)
        _until(lambda: (project.folder / "go.waiting").exists() or not process.is_running(), process)
    elif stage in WITH_WORKERS:
        process = project.start(stage)
    else:
        raise NotHereError("no workers")
    seen: list[psutil.Process] = []

    def one_works() -> bool:
        for worker in process.workers():
            with suppress(psutil.NoSuchProcess):  # a fork that has just ended was no worker
                if stage == "features" or sum(worker.cpu_times()[:2]) > 1:
                    seen.append(worker)
        return bool(seen) or not process.is_running()

    _until(one_works, process)
    assert seen, process.output
    return process, seen[0]


def _dask_worker_at_work(process: Process, nanny: psutil.Process) -> psutil.Process:
    _until(lambda: "on the Dask cluster" in process.output or not process.is_running(), process)
    assert process.is_running(), process.output
    workers = [child for child in nanny.children(recursive=True) if "spawn_main" in " ".join(child.cmdline())]
    return workers[0]


@contextmanager
def _dask(stage: str, project: Project) -> Iterator[tuple[str, psutil.Process, psutil.Process]]:
    """A Dask cluster of one worker: its address, its scheduler, the nanny of its worker."""
    if stage not in ("features", *WITH_WORKERS):
        raise NotHereError("no workers")
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise NotHereError("the extra dask is not installed") from None
    found = project.folder / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    options = {"cwd": project.folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), os.environ.get("PYTHONPATH", "")])}
    host = ["--host=127.0.0.1", "--no-dashboard", f"--scheduler-file={found}"]
    scheduler = subprocess.Popen([*dask, "scheduler", *host, "--port=0"], env=environment, **options)  # type: ignore[call-overload]
    worker = [*dask, "worker", *host, "--nthreads=1", "--nworkers=1", "--memory-limit=0"]
    nanny = subprocess.Popen(worker, env=environment, **options)  # type: ignore[call-overload]
    try:
        began = time.monotonic()
        while not found.exists() or not psutil.Process(nanny.pid).children():
            assert time.monotonic() - began < 300
            time.sleep(0.1)
        yield json.loads(found.read_text())["address"], psutil.Process(scheduler.pid), psutil.Process(nanny.pid)
    finally:
        for process in (nanny, scheduler):
            for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
                with suppress(psutil.Error):
                    child.kill()
            process.kill()
            process.wait()


@contextmanager
def _small_disk(folder: Path) -> Iterator[Callable[[], None]]:
    """A disk of its own in a folder; gives a function that fills it."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        raise NotHereError("only root can mount a small disk")

    def fill() -> None:
        with (folder / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(folder).free - ROOM)

    try:
        yield fill
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _obey_permissions() -> None:
    """Take from this process, and from its workers, the capabilities with which root writes everywhere."""
    system = ctypes.CDLL(None, use_errno=True)
    for capability in OVERRIDES if os.geteuid() == 0 else ():
        assert system.prctl(DROP_FROM_BOUNDING_SET, capability, 0, 0, 0) == 0
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: first the lower halves of each
    assert system.capget(header, sets) == 0
    for place in range(3):
        sets[place] &= ~sum(1 << capability for capability in OVERRIDES)
    assert system.capset(header, sets) == 0, os.strerror(ctypes.get_errno())


def _turn_clock_back() -> None:
    now = time.time
    time.time = lambda: now() - DAY  # type: ignore[assignment]
