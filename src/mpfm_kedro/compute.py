"""Where work is done: which device, and a map over tasks in processes of this machine or on a Dask cluster."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
from joblib import cpu_count

from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import ComputeParameters
from mpfm_kedro.progress import progress
from mpfm_kedro.workers import LOST_WORKERS, Workers, dask_workers, processes, this_process

if TYPE_CHECKING:  # torch is imported where it is used: Kedro's start-up stays quick
    import torch

logger = logging.getLogger(__name__)
Task = TypeVar("Task")
Result = TypeVar("Result")

MAX_THREADS = 8  # more of them make one task hardly faster
MAX_CONSECUTIVE_FAILURES = 3  # of tasks, after which the fault is not that of a task
POLL_SECONDS = 1.0
POISON_MESSAGE = "it killed several Dask workers, probably out of memory"


def torch_device(device: str) -> torch.device:
    """``auto`` is CUDA where there is one, else the CPU."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("Parameter 'device' = 'cuda', but torch finds no CUDA device here; use auto or cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def threads_per_task(parameters: ComputeParameters, total: int) -> int:
    """Threads of one task: ``compute.threads``, or half of its share of the cores, ⌊cores / (2 total)⌋, from 1 to 8."""
    return parameters.threads or max(1, min(MAX_THREADS, cpu_count() // (2 * max(1, total))))


def concurrent_tasks(parameters: ComputeParameters, n_tasks: int, memory: int = 0) -> int:
    """How many of ``n_tasks`` run at once on this machine, each with ``memory`` bytes; on Dask its scheduler decides.

    ``compute.processes``, or by default one per core on a CPU and one on CUDA; never more than the memory allows.
    """
    processes = parameters.processes or (1 if _on_cuda(parameters) else cpu_count() // max(1, parameters.threads))
    in_memory = memory_limit(parameters) // memory if memory else n_tasks
    return max(1, min(processes, n_tasks, in_memory))


def memory_limit(parameters: ComputeParameters) -> int:
    """Bytes that all tasks together may use: ``compute.memory_share`` of what is available now."""
    return int(parameters.memory_share * psutil.virtual_memory().available)


def _on_cuda(parameters: ComputeParameters) -> bool:
    local = parameters.dask_scheduler is None
    return local and parameters.device != "cpu" and torch_device(parameters.device).type == "cuda"


def map_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    label: str,
    parameters: ComputeParameters,
    total: int | None = None,
    memory: int = 0,
    epochs: Callable[[Task], tuple[int, int]] | None = None,
) -> list[Result]:
    """``function`` of each task, in the order of the tasks, with one progress bar.

    On a CPU every task runs in a worker process, a single one too: it rounds the same whatever else remains to be
    done. On CUDA one task at a time runs in this process, unless ``compute.processes`` says otherwise. With
    ``compute.dask_scheduler`` a Dask cluster does the work; its workers need this package and the same data folder.
    A task that fails does not stop the others, unless several fail in a row; when these are done, the error names it.

    ``total`` counts finished tasks, too: it decides the threads of each. ``memory`` is what one task needs; 0 is
    unknown. ``epochs`` says how many a task has done and will do; they are counted where there are any.
    """
    if not tasks:
        return []
    total = max(total or 0, len(tasks))
    count = epochs if epochs and any(epochs(task)[1] for task in tasks) else lambda task: (0, 1)
    done, planned = map(list, zip(*map(count, tasks), strict=True))
    finished, unit = (0, "epochs") if count is epochs else (total - len(tasks), "tasks")
    results: list[Any] = [None] * len(tasks)

    def show(running: Iterable[int] = ()) -> None:
        for index in running:
            done[index] = count(tasks[index])[0]
        bar.update(max(0, finished + sum(done) - int(bar.n)))  # never backwards

    with (
        _workers(function, label, parameters, (len(tasks), total), memory) as workers,
        progress(label, finished + sum(planned), unit, finished + sum(done)) as bar,
    ):
        for index, result in completed(workers, tasks, label, show):
            results[index], done[index] = result, planned[index]
            show()
    return results


def completed(
    workers: Workers, tasks: Sequence[Any], label: str, on_wait: Callable[[Iterable[int]], None] = lambda running: None
) -> Iterator[tuple[int, Any]]:
    """Index and result of each task as it is ready; at the end, or after failures in a row, an error names the failed.

    ``on_wait`` is called from time to time with the indices of the tasks that run.
    """
    waiting, suspects, retried = deque(range(len(tasks))), deque[int](), set[int]()
    running: dict[Future[Any], int] = {}
    failed: dict[int, BaseException] = {}
    consecutive = 0
    while (waiting or running or suspects) and consecutive < MAX_CONSECUTIVE_FAILURES:
        capacity = workers.capacity()
        while waiting and len(running) < capacity:
            index = waiting.popleft()
            running[workers.submit(tasks[index])] = index
        if not running:  # once more, one at a time: Dask also blames what was on the same worker
            index = suspects.popleft()
            retried.add(index)
            running[workers.submit(tasks[index])] = index
        ready, _ = wait(running, POLL_SECONDS, FIRST_COMPLETED)
        on_wait([index for future, index in running.items() if future not in ready])
        for future in sorted(ready, key=running.__getitem__):
            index, error = running.pop(future), future.exception()
            if error is None:
                consecutive = 0
                yield index, future.result()
            elif isinstance(error, LOST_WORKERS):
                raise error
            elif isinstance(error, workers.blamed) and index not in retried:
                suspects.append(index)
            else:
                failed[index] = InputError(POISON_MESSAGE) if isinstance(error, workers.blamed) else error
                consecutive += 1
                logger.error("%s: %s failed: %s", label, tasks[index], failed[index])
    if failed:
        rest = "the remaining tasks were cancelled" if waiting or running else "all others are done"
        lines = [f"{tasks[index]}: {error}" for index, error in failed.items()]
        message = "\n".join([f"{label}: {len(failed)} of {len(tasks)} tasks failed, {rest}:", *lines])
        first = next(iter(failed.values()))
        raise (InputError if isinstance(first, InputError) else RuntimeError)(message) from first


def _workers(
    function: Callable[..., Any], label: str, parameters: ComputeParameters, counts: tuple[int, int], memory: int
) -> AbstractContextManager[Workers]:
    """The workers that the parameters ask for; ``counts`` are the remaining and all tasks."""
    if parameters.dask_scheduler is not None:
        return dask_workers(function, label, parameters)
    remaining, total = counts
    at_once = concurrent_tasks(parameters, remaining, memory)
    threads, limit = threads_per_task(parameters, total), memory_limit(parameters)
    need = f"{memory / 1e9:.1f} GB" if memory else "unknown"
    resources = f"threads each: {threads}, memory each: {need}, limit for all: {limit / 1e9:.1f} GB"
    logger.info(f"{label}: {remaining} of {total} tasks remain, {at_once} at once ({resources})")
    if memory > limit:
        logger.warning(
            f"One task needs {need}, more than the limit of {limit / 1e9:.1f} GB "
            "(compute.memory_share of the available memory); tasks run one at a time and may run out of memory"
        )
    if at_once == 1 and _on_cuda(parameters):  # a second process would need a CUDA context of its own
        return nullcontext(this_process(function))
    return processes(function, at_once, threads)
