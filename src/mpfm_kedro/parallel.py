"""Where work is done: which device, and a map over tasks in processes of this machine or on a Dask cluster."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
from joblib import cpu_count
from joblib.externals.loky import as_completed, get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from mpfm_kedro.dask_engine import on_dask, show_log
from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import ComputeParameters
from mpfm_kedro.progress import progress

if TYPE_CHECKING:  # torch is imported where it is used: Kedro's start-up stays quick
    import torch

logger = logging.getLogger(__name__)
Task = TypeVar("Task")
Result = TypeVar("Result")

MAX_THREADS = 8  # more of them make one task hardly faster
MOST_IN_A_ROW = 3  # failed tasks, after which the fault is not that of a task
IDLE_SECONDS = 60  # after which a worker without work ends
CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def torch_device(device: str) -> torch.device:
    """``auto`` is CUDA where there is one, else the CPU."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("Parameter 'device' = 'cuda', but torch finds no CUDA device here; use auto or cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def map_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    label: str,
    parameters: ComputeParameters,
    device: str = "cpu",
    total: int | None = None,
    memory: int = 0,
    epochs: Callable[[Task], tuple[int, int]] | None = None,
) -> list[Result]:
    """``function`` of each task, in the order of the tasks, with one progress bar.

    On a CPU every task runs in a worker process, a single one too: it rounds the same whatever else remains to be
    done. On CUDA one task at a time runs in this process, unless ``compute.processes`` says otherwise. With
    ``compute.dask_scheduler`` a Dask cluster does the work; its workers need this package and the same data folder.
    A task that fails does not stop the others, unless several fail in a row; when these are done, the error names it.

    Args:
        function: importable by name, as are the tasks.
        tasks: those that remain to be done.
        label: of the progress bar and the log lines.
        parameters: how many tasks at once, their threads and their share of the memory.
        device: auto, cpu or cuda.
        total: how many tasks were planned, finished ones included: they decide the threads of each.
        memory: bytes that one task needs; 0 is unknown.
        epochs: how many epochs a task has done and will do; they are counted instead of tasks where there are some.
    """
    on_cluster = parameters.dask_scheduler is not None
    on_cuda = not on_cluster and _on_cuda(device)  # a missing device is an error before any work
    if not tasks:
        return []
    total = max(total or 0, len(tasks))
    threads = threads_per_task(parameters, total)
    if on_cluster:
        completed = on_dask(function, tasks, label, parameters)
    else:
        at_once = concurrent_tasks(parameters, device, len(tasks), memory)
        plan = f"{label}: {len(tasks)} of {total} tasks remain, {at_once} at once"
        _log_plan(plan, threads, memory, memory_limit(parameters))
        if on_cuda and at_once == 1:  # a second process would need a CUDA context of its own
            completed = ((index, _outcome(function, task)) for index, task in enumerate(tasks))
        else:
            completed = _in_workers(function, tasks, at_once, threads)
    return _collect(completed, tasks, label, total, epochs)


def _outcome(function: Callable[[Task], Result], task: Task) -> Result | Exception:
    """The result of a task, or the error with which it failed."""
    try:
        return function(task)
    except Exception as error:
        return error


def _collect(
    completed: Generator[tuple[int, Any], None, None],
    tasks: Sequence[Task],
    label: str,
    total: int,
    epochs: Callable[[Task], tuple[int, int]] | None,
) -> list[Result]:
    """The results in the order of the tasks."""
    results: list[Any] = [None] * len(tasks)
    counts = [epochs(task) for task in tasks] if epochs else []
    planned = sum(of for _, of in counts)
    done = succeeded(completed, tasks, label)
    if epochs is not None and planned:
        running = dict(enumerate(tasks))
        with (
            progress(label, planned, "epochs", done=sum(done for done, _ in counts)) as bar,
            _repeatedly(lambda: bar.reach(_epochs_done(epochs, running, counts))),
        ):
            for index, result in done:
                results[index] = result
                del running[index]
        return results
    with progress(label, total, "tasks", done=total - len(tasks)) as bar:
        for index, result in done:
            results[index] = result
            bar.advance()
    return results


def succeeded(
    completed: Generator[tuple[int, Any], None, None], tasks: Sequence[Task], label: str
) -> Iterator[tuple[int, Any]]:
    """What was done; at its end, or when several failed in a row, an error that names all tasks that failed."""
    failed: dict[int, Exception] = {}
    in_a_row = 0
    for index, outcome in completed:
        if isinstance(outcome, Exception):
            failed[index], in_a_row = outcome, in_a_row + 1
            logger.error("%s: %s failed: %s", label, tasks[index], outcome)
            if in_a_row == MOST_IN_A_ROW:
                completed.close()  # ends the others
                break
        else:
            in_a_row = 0
            yield index, outcome
    if failed:
        rest = "the others were not done" if in_a_row == MOST_IN_A_ROW else "all others are done"
        lines = [f"{tasks[index]}: {error}" for index, error in failed.items()]
        message = "\n".join([f"{label}: {len(failed)} of {len(tasks)} tasks failed, {rest}:", *lines])
        first = next(iter(failed.values()))
        raise (InputError if isinstance(first, InputError) else RuntimeError)(message) from first


def _epochs_done(
    epochs: Callable[[Task], tuple[int, int]], running: dict[int, Task], counts: list[tuple[int, int]]
) -> int:
    finished = sum(of for index, (_, of) in enumerate(counts) if index not in running)
    return finished + sum(epochs(task)[0] for task in list(running.values()))


@contextmanager
def _repeatedly(function: Callable[[], None], every: float = 1.0) -> Iterator[None]:
    """Call a function from time to time while something else is waited for, and once at the end."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(every):
            function()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    function()


def _on_cuda(device: str) -> bool:
    return device != "cpu" and torch_device(device).type == "cuda"


def threads_per_task(parameters: ComputeParameters, total: int) -> int:
    """Threads of one task: ``compute.threads``, or half of its share of the cores, ⌊cores / (2 total)⌋, from 1 to 8."""
    return parameters.threads or max(1, min(MAX_THREADS, cpu_count() // (2 * max(1, total))))


def concurrent_tasks(parameters: ComputeParameters, device: str, n_tasks: int, memory: int = 0) -> int:
    """How many of ``n_tasks`` run at once on this machine, each with ``memory`` bytes; on Dask its scheduler decides.

    ``compute.processes``, or by default one per core on a CPU and one on CUDA; never more than the memory allows.
    """
    processes = parameters.processes or (1 if _on_cuda(device) else cpu_count() // max(1, parameters.threads))
    in_memory = memory_limit(parameters) // memory if memory else n_tasks
    return max(1, min(processes, n_tasks, in_memory))


def memory_limit(parameters: ComputeParameters) -> int:
    """Bytes that all tasks together may use: ``compute.memory_share`` of what is available now."""
    available = min([psutil.virtual_memory().available, *_container_memory()])
    return int(parameters.memory_share * available)


def _container_memory() -> Iterator[int]:
    """Bytes left below each memory limit of the control groups around this process, version 1 and 2."""
    for line in _text(OWN_GROUPS).splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers == "":
            root, names = CONTROL_GROUPS, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = CONTROL_GROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = root / own.lstrip("/")
        for folder in [group, *(parent for parent in group.parents if parent.is_relative_to(root))]:
            limit, used = (_text(folder / name).strip() for name in names)
            if limit.isdigit() and used.isdigit():
                yield max(0, int(limit) - int(used) + _cached_files(folder))


def _cached_files(folder: Path) -> int:
    """Bytes of a control group that hold copies of files and are given back on demand."""
    counts = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
    return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # not Linux, or another version of control groups
        return ""


def _log_plan(plan: str, threads: int, memory: int, limit: int) -> None:
    each = f"{memory / 1e9:.1f} GB" if memory else "unknown"
    resources = f"threads each: {threads}, memory each: {each}, limit for all: {limit / 1e9:.1f} GB"
    logger.info(f"{plan} ({resources})")
    if memory > limit:
        logger.warning(
            f"One task needs {memory / 1e9:.1f} GB, more than the limit of {limit / 1e9:.1f} GB "
            "(compute.memory_share of the available memory); tasks run one at a time and may run out of memory"
        )


def _in_workers(
    function: Callable[[Task], Result], tasks: Sequence[Task], processes: int, threads: int
) -> Generator[tuple[int, Any], None, None]:
    """Index and result of each task as it is ready, or its error; warm workers with the same threads are reused."""
    # read before the worker imports any library; passive: threads that wait leave the cores to others
    numbers = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    executor = get_reusable_executor(
        processes,
        timeout=IDLE_SECONDS,
        initializer=_prepare_worker,
        initargs=(os.getpid(),),
        env={**numbers, "OMP_WAIT_POLICY": "PASSIVE"},
    )
    try:
        with warnings.catch_warnings():
            # a worker whose memory grew is replaced between two tasks, which is as it should be
            warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
            futures = {executor.submit(function, task): index for index, task in enumerate(tasks)}
            for future in as_completed(futures):
                error = future.exception()
                if isinstance(error, TerminatedWorkerError):
                    raise error
                yield futures[future], future.result() if error is None else error
    except BaseException as error:
        executor.shutdown(kill_workers=True)
        if isinstance(error, TerminatedWorkerError):
            raise InputError(
                "A worker process was killed, most likely for lack of memory: lower compute.processes or "
                "compute.memory_share"
            ) from error
        raise


def _prepare_worker(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    show_log()
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    """A worker whose parent was killed must not continue."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
