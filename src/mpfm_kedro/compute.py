"""Where work is done: which device, and a map over runs on this machine or on a Dask cluster."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from typing import TYPE_CHECKING, Any, TypeVar

from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import ComputeParameters
from mpfm_kedro.progress import progress

if TYPE_CHECKING:  # torch is imported where it is used: Kedro's start-up stays quick
    import torch

Task = TypeVar("Task")
Result = TypeVar("Result")


def torch_device(device: str) -> torch.device:
    """``auto`` is CUDA where there is one, else the CPU."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("Parameter 'device' = 'cuda', but torch finds no CUDA device here; use auto or cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def map_runs(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    label: str,
    parameters: ComputeParameters,
    device: str = "cpu",
) -> list[Result]:
    """``function`` of each task, in the order of the tasks, with one progress bar.

    On a CPU as many tasks as cores run side by side, each on its share of the threads; on CUDA one at a time, unless
    ``compute.processes`` says otherwise. With ``compute.dask_scheduler`` a Dask cluster does the work; its workers
    need this package and the same data folder.
    """
    results: list[Any] = [None] * len(tasks)
    with progress(label, len(tasks), "runs") as bar:
        for index, result in _completed(function, tasks, parameters, device):
            results[index] = result
            bar.advance()
    return results


def processes_of(parameters: ComputeParameters, device: str) -> int:
    """How many runs go on side by side on this machine; on a Dask cluster its scheduler decides."""
    on_cuda = torch_device(device).type == "cuda"
    return parameters.processes or (1 if on_cuda else os.cpu_count() or 1)


def _completed(
    function: Callable[[Task], Result], tasks: Sequence[Task], parameters: ComputeParameters, device: str
) -> Iterator[tuple[int, Result]]:
    if parameters.dask_scheduler is not None:
        yield from _on_dask(function, tasks, parameters.dask_scheduler)
        return
    cores = os.cpu_count() or 1
    processes = min(processes_of(parameters, device), len(tasks))
    if processes < 2:
        yield from ((index, function(task)) for index, task in enumerate(tasks))
        return
    threads = max(1, cores // (parameters.processes or cores))
    # Forked children of a process with torch threads can hang: start fresh ones.
    with ProcessPoolExecutor(processes, get_context("spawn"), _prepare_worker, (threads,)) as pool:
        futures = {pool.submit(function, task): index for index, task in enumerate(tasks)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _on_dask(function: Callable[[Task], Result], tasks: Sequence[Task], scheduler: str) -> Iterator[tuple[int, Result]]:
    try:
        from distributed import Client
        from distributed import as_completed as dask_completed
    except ImportError as error:
        raise InputError(
            "compute.dask_scheduler needs the package distributed: pip install 'mpfm_kedro[dask]'"
        ) from error
    try:
        client = Client(scheduler, timeout="10s")
    except (OSError, ValueError) as error:
        raise InputError(f"compute.dask_scheduler: no Dask scheduler answers at {scheduler}") from error
    with client:
        futures = {client.submit(function, task, pure=False): index for index, task in enumerate(tasks)}
        for future in dask_completed(list(futures)):
            yield futures[future], future.result()


def _prepare_worker(threads: int) -> None:
    import torch
    from threadpoolctl import threadpool_limits

    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("mpfm_kedro").setLevel(logging.INFO)
    torch.set_num_threads(threads)
    threadpool_limits(threads)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """A worker whose parent was killed must not go on."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
