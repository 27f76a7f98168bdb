"""Who does the tasks: this process, worker processes of this machine, or a Dask cluster."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from joblib import cpu_count
from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import ComputeParameters

if TYPE_CHECKING:  # an optional package
    from distributed import Client

logger = logging.getLogger(__name__)
Work = Callable[..., Any]

MAX_IDLE_SECONDS = 60  # after which a worker process without work ends
MAX_WORKERLESS_SECONDS = 600.0  # after which a Dask cluster without workers is an error
FETCHING_SECONDS = 60.0  # that the result of a Dask task may take to come here
MAX_DASK_TASKS = 512  # under way at once
DASK_WINDOW = 32  # tasks that the scheduler holds at least: each carries its part of the tables
LOCAL, SLURM = "local", "slurm"
NAME = "compute.dask_scheduler"
LOST_WORKERS = (TerminatedWorkerError, CancelledError)  # errors that say nothing about their task


@dataclass(frozen=True)
class Workers:
    """Where tasks are sent, and how many at once."""

    submit: Callable[[Any], Future[Any]]
    capacity: Callable[[], int]
    blamed: type[Exception] | tuple[()] = ()  # of a task whose worker died repeatedly, by it or by another one there


def this_process(function: Work) -> Workers:
    """One task at a time, right here."""

    def submit(task: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(task))
        except Exception as error:
            future.set_exception(error)
        return future

    return Workers(submit, lambda: 1)


# Idle processes by parent, number and threads. Those of joblib and scikit-learn are not ours: they cannot be shared.
_warm: dict[tuple[int, int, int], ProcessPoolExecutor] = {}


@contextmanager
def processes(function: Work, at_once: int, threads: int) -> Iterator[Workers]:
    """Processes of this machine; warm ones with the same threads are reused, and an error ends them all."""
    key = os.getpid(), at_once, threads
    executor = _warm.pop(key, None) or _new_processes(at_once, threads)
    _end_idle_processes()
    try:
        with warnings.catch_warnings():
            # a worker whose memory grew is replaced between two tasks, as it should be
            warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
            yield Workers(lambda task: executor.submit(function, task), lambda: 2 * at_once)
    except BaseException as error:
        executor.shutdown(kill_workers=True)
        if isinstance(error, TerminatedWorkerError):
            advice = "probably out of memory: lower compute.processes or compute.memory_share"
            raise InputError(f"A worker process was killed, {advice}") from error
        raise
    _end_idle_processes()  # of another thread
    _warm[key] = executor


def _new_processes(at_once: int, threads: int) -> ProcessPoolExecutor:
    # read before the worker imports any library; passive: threads that wait leave the cores to others
    numbers = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    return ProcessPoolExecutor(
        at_once,
        timeout=MAX_IDLE_SECONDS,
        initializer=_prepare_process,
        initargs=(os.getpid(),),
        env={**numbers, "OMP_WAIT_POLICY": "PASSIVE"},
    )


def _end_idle_processes() -> None:
    for key in list(_warm):
        executor = _warm.pop(key, None)  # None: another thread was first
        if executor and key[0] == os.getpid():
            executor.shutdown(wait=False)


def _prepare_process(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    _show_log()
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    """A worker whose parent was killed must not continue."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _show_log() -> None:
    """Let a worker log the project's messages."""
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("mpfm_kedro").setLevel(logging.INFO)


@contextmanager
def dask_workers(function: Work, label: str, parameters: ComputeParameters, shared: Any = None) -> Iterator[Workers]:
    """Workers of a Dask cluster, which repeats the tasks of a lost worker, and no others.

    ``shared`` is something large, the second argument of all tasks; it is sent to each worker once.
    """
    with _client(parameters) as client:
        from distributed import KilledWorker, wait  # there, or there would be no client

        resources = _checked_resources(client, parameters)
        cluster, threads = parameters.dask_scheduler, parameters.threads or 1
        # as the result of a task: unlike scattered data, Dask computes it again if its worker is lost
        more = () if shared is None else (client.submit(_same, shared, pure=False),)
        last_seen = time.monotonic()
        # a thread for each task: in Dask's own executor, a result that cannot be fetched never comes
        waiting = ThreadPoolExecutor(MAX_DASK_TASKS)

        def work(task: Any) -> Any:
            remote = client.submit(_run_on_dask, function, threads, task, *more, pure=False, resources=resources)
            wait(remote)
            try:
                return remote.result(timeout=FETCHING_SECONDS)
            except TimeoutError as error:
                raise CancelledError from error

        def capacity() -> int:
            nonlocal last_seen
            n_threads = sum(client.nthreads().values())  # workers may have joined
            if n_threads:
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > MAX_WORKERLESS_SECONDS and cluster != SLURM:  # its jobs may wait days
                raise InputError(
                    f"{NAME}: the Dask cluster {cluster} has had no worker for {MAX_WORKERLESS_SECONDS:g} s; "
                    "start some, then start again: what is finished is kept"
                )
            return max(DASK_WINDOW, 2 * n_threads)

        logger.info(f"{label}: on the Dask cluster {cluster}, {sum(client.nthreads().values())} tasks at once")
        try:
            yield Workers(lambda task: waiting.submit(work, task), capacity, KilledWorker)
        except (CancelledError, OSError) as error:
            raise InputError(f"{NAME}: the Dask scheduler at {cluster} was lost") from error
        finally:
            waiting.shutdown(wait=False, cancel_futures=True)  # its threads end with the client


def _same(shared: Any) -> Any:
    return shared


def _run_on_dask(function: Work, threads: int, *task: Any) -> Any:
    import torch

    _show_log()
    torch.set_num_threads(threads)
    return function(*task)


def _client(parameters: ComputeParameters) -> Client:
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError(f"{NAME} needs the package distributed: pip install 'mpfm_kedro[dask]'") from error
    for name in ("distributed", "distributed.client"):  # no trace-backs beside our own error
        logging.getLogger(name).setLevel(logging.CRITICAL)
    where = str(parameters.dask_scheduler)
    if where in (LOCAL, SLURM):
        return Client(start_cluster(where, parameters.processes))
    try:
        return Client(where, timeout="10s")
    except (OSError, ValueError) as error:
        raise InputError(f"{NAME}: no Dask scheduler answers at {where}") from error


@cache
def start_cluster(where: str, workers: int) -> Any:
    """Worker processes of this machine or in jobs of SLURM, until this process ends; a lost one is replaced.

    Dask's configuration ``jobqueue.slurm`` describes a job.
    """
    if where == LOCAL:
        from distributed import LocalCluster

        return LocalCluster(n_workers=workers or cpu_count(), threads_per_worker=1, dashboard_address=None)
    if not workers:
        raise InputError(f"{NAME}={SLURM}: compute.processes = 0; say how many workers to ask SLURM for")
    try:
        from dask_jobqueue import SLURMCluster

        cluster = SLURMCluster()
    except ImportError as error:
        raise InputError(f"{NAME}={SLURM} needs the package dask-jobqueue: pip install 'mpfm_kedro[slurm]'") from error
    except ValueError as error:
        raise InputError(f"{NAME}={SLURM}: {error}; see docs/operations.md for Dask's configuration") from error
    cluster.scale(workers)
    return cluster


def _checked_resources(client: Client, parameters: ComputeParameters) -> dict[str, float] | None:
    """The resources that a task takes; an error where there are workers and none of them has so much."""
    wanted = parameters.dask_resources
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    having = [all(worker["resources"].get(name, 0) >= least for name, least in wanted.items()) for worker in workers]
    if having and not any(having):
        labels = ",".join(f"{name}={least:g}" for name, least in wanted.items())
        raise InputError(
            f"compute.dask_resources: no worker of the Dask cluster {parameters.dask_scheduler} has {labels}; "
            f"start workers with: dask worker ADDRESS --resources {labels}"
        )
    return wanted or None
