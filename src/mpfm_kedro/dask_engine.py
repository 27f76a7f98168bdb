"""Tasks on a Dask cluster: an existing one by its address, one of this machine, or one that SLURM starts."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator, Sequence
from functools import cache, partial
from itertools import islice
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, TypeVar

from joblib import cpu_count

from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import ComputeParameters

if TYPE_CHECKING:  # an optional package
    from distributed import Client

logger = logging.getLogger(__name__)
Task = TypeVar("Task")
LOCAL, SLURM = "local", "slurm"
NAME = "compute.dask_scheduler"
POISON = "it ended several Dask workers, most likely for lack of memory"
LOOK_SECONDS, LOOKS = 60.0, 10  # how often workers are looked for where no task ends, and how often in vain
WAITING = 32  # tasks that the scheduler holds at least: each carries its part of the tables


def on_dask(
    function: Callable[..., Any],
    tasks: Sequence[Task],
    label: str,
    parameters: ComputeParameters,
    shared: Any = None,
) -> Generator[tuple[int, Any], None, None]:
    """Index and result of each task as it is ready, or the error with which it failed.

    Dask repeats the tasks of a lost worker, and no others. Not by joblib's Dask backend: it waits for ever for a task
    that Dask has given up.

    Args:
        function: of a task, and of ``shared`` where that is given.
        tasks: to be done, the first ones first.
        label: of the log lines.
        parameters: which cluster, threads of a task, and what its worker must have.
        shared: something large that all tasks need; it is sent to each worker once.
    """
    with _client(parameters) as client:
        from distributed import KilledWorker  # there, or there would be no client

        resources = _checked_resources(client, parameters)
        threads = sum(client.nthreads().values())
        logger.info(f"{label}: {len(tasks)} tasks on the Dask cluster {parameters.dask_scheduler}, {threads} at once")
        work = partial(_run, function, parameters.threads or 1)
        more = () if shared is None else (_sent(client, shared),)
        ready: Queue[Any] = Queue()
        places: dict[Any, int] = {}

        def submit(place: int) -> None:
            future = client.submit(work, tasks[place], *more, pure=False, resources=resources or None)
            places[future] = place
            future.add_done_callback(ready.put)

        waiting = iter(range(len(tasks)))
        suspects: list[int] = []
        tried_again: set[int] = set()
        for place in islice(waiting, max(WAITING, 2 * threads)):
            submit(place)
        while places:
            future = _next_done(ready, client, parameters)
            place, found = places.pop(future), _outcome(future, parameters)
            if isinstance(found, KilledWorker) and place not in tried_again:
                suspects.append(place)
            else:
                yield place, InputError(POISON) if isinstance(found, KilledWorker) else found
            room = max(WAITING, 2 * sum(client.nthreads().values())) - len(places)  # workers may have joined
            for new in islice(waiting, room):
                submit(new)
            if not places and suspects:  # again, one at a time: Dask also blames what was on the same worker
                place = suspects.pop()
                tried_again.add(place)
                submit(place)


def _sent(client: Client, shared: Any) -> Any:
    """Something large as the result of a task: unlike scattered data, Dask makes it again if its worker is lost."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
        return client.submit(_itself, shared, pure=False)


def _itself(shared: Any) -> Any:
    return shared


def _next_done(ready: Queue[Any], client: Client, parameters: ComputeParameters) -> Any:
    """The next future that is done; an error where the cluster has had no worker for too long."""
    alone = 0
    while True:
        try:
            return ready.get(timeout=LOOK_SECONDS)
        except Empty:
            alone = 0 if client.nthreads() else alone + 1
        if alone:
            logger.warning("The Dask cluster %s has no worker: waiting for one", parameters.dask_scheduler)
        if alone >= LOOKS and parameters.dask_scheduler != SLURM:  # whose jobs may wait for days
            raise InputError(
                f"{NAME}: the Dask cluster {parameters.dask_scheduler} has had no worker for "
                f"{alone * LOOK_SECONDS:g} s; start some, then start again: what is finished is kept"
            )


def _outcome(future: Any, parameters: ComputeParameters) -> Any:
    """The result of a future, or its error; the scheduler may forget both."""
    from distributed import CancelledError

    try:
        return future.result()
    except CancelledError as error:
        raise InputError(f"{NAME}: the Dask scheduler at {parameters.dask_scheduler} was lost") from error
    except Exception as error:
        return error
    finally:
        future.release()


def _run(function: Callable[..., Any], threads: int, task: Any, *shared: Any) -> Any:
    """The work of a worker."""
    import torch

    show_log()
    torch.set_num_threads(threads)
    return function(task, *shared)


def show_log() -> None:
    """Let a worker log what the project tells."""
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("mpfm_kedro").setLevel(logging.INFO)


def _client(parameters: ComputeParameters) -> Client:
    """A client of the cluster that the parameters name."""
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError(f"{NAME} needs the package distributed: pip install 'mpfm_kedro[dask]'") from error
    for name in ("distributed", "distributed.client"):  # a lost scheduler is one line of ours, not trace-backs of Dask
        logging.getLogger(name).setLevel(logging.CRITICAL)
    where = str(parameters.dask_scheduler)
    if where == LOCAL:
        return Client(_local_cluster(parameters.processes or cpu_count()))
    if where == SLURM:
        return Client(_slurm_cluster(parameters.processes))
    try:
        return Client(where, timeout="10s")
    except (OSError, ValueError) as error:
        raise InputError(f"{NAME}: no Dask scheduler answers at {where}") from error


@cache
def _local_cluster(workers: int) -> Any:
    """Worker processes of this machine, until this process ends; a worker that dies is replaced."""
    from distributed import LocalCluster

    return LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)


@cache
def _slurm_cluster(workers: int) -> Any:
    """Workers in jobs of SLURM, until this process ends; Dask's configuration ``jobqueue.slurm`` describes a job."""
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError as error:
        raise InputError(f"{NAME}={SLURM} needs the package dask-jobqueue: pip install 'mpfm_kedro[slurm]'") from error
    if not workers:
        raise InputError(f"{NAME}={SLURM}: compute.processes = 0; say how many workers to ask SLURM for")
    try:
        cluster = SLURMCluster()
    except ValueError as error:
        raise InputError(f"{NAME}={SLURM}: {error}; see docs/operations.md for Dask's configuration") from error
    cluster.scale(workers)
    return cluster


def _checked_resources(client: Client, parameters: ComputeParameters) -> dict[str, float]:
    """The resources that a task takes; an error where there are workers and none of them has so much."""
    wanted = parameters.dask_resources
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    having = [all(worker["resources"].get(name, 0) >= least for name, least in wanted.items()) for worker in workers]
    if having and not any(having):
        said = ",".join(f"{name}={least:g}" for name, least in wanted.items())
        raise InputError(
            f"compute.dask_resources: no worker of the Dask cluster {parameters.dask_scheduler} has {said}; "
            f"start workers with: dask worker ADDRESS --resources {said}"
        )
    return wanted
