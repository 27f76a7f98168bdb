"""The map over tasks: the same results in order from worker processes or a Dask cluster, within cores and memory."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from threading import Timer

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from joblib import Parallel, delayed

from compute_tasks import (
    die,
    die_once,
    divide,
    environment,
    epochs_of,
    fail_and_count,
    mark_or_die,
    mark_or_fail,
    refuse,
    square,
    torch_threads,
    train,
)
from mpfm_kedro import compute, workers
from mpfm_kedro.compute import concurrent_tasks, map_tasks, memory_limit, threads_per_task, torch_device
from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import ComputeParameters
from mpfm_kedro.progress import Progress


def parameters(processes: int = 1, **others) -> ComputeParameters:
    return ComputeParameters(processes=processes, **{"dask_scheduler": None, "device": "cpu", **others})


NUMBERS = [0, 1, 2, 3, 4]
SQUARES = [0, 1, 4, 9, 16]


@pytest.mark.parametrize("processes", [1, 2])
def test_workers_keep_the_order(processes):
    results = map_tasks(square, NUMBERS, "Squares", parameters(processes))
    assert [value for value, _ in results] == SQUARES
    workers = {process for _, process in results}
    assert os.getpid() not in workers
    assert len(workers) <= processes


def test_a_single_remaining_task_runs_in_a_worker_with_the_threads_of_the_whole_map(monkeypatch):
    monkeypatch.setattr(compute, "cpu_count", lambda: 12)  # three threads for one of two tasks, six for one of one
    assert map_tasks(environment, ["OMP_NUM_THREADS"], "Names", parameters(0), total=2) == ["3"]
    assert map_tasks(environment, ["OMP_NUM_THREADS"], "Names", parameters(0)) == ["6"]


@pytest.mark.parametrize("processes", [1, 2])
def test_error_of_a_task_reaches_the_user_as_it_is_and_workers_can_be_used_again(processes):
    with pytest.raises(InputError, match="number 2 cannot be used"):
        map_tasks(refuse, NUMBERS, "Numbers", parameters(processes))
    assert map_tasks(refuse, [1, 3], "Numbers", parameters(processes)) == [1, 3]


def test_other_users_of_joblib_have_processes_of_their_own():
    for _ in range(2):
        first = map_tasks(square, NUMBERS, "Squares", parameters(2))
        others = Parallel(2, batch_size=1)(delayed(square)(number) for number in NUMBERS)
        assert [value for value, _ in first] == SQUARES == [value for value, _ in others]
        assert not {process for _, process in first} & {process for _, process in others}


def test_warm_processes_are_used_again_and_those_with_other_threads_end():
    first = {process for _, process in map_tasks(square, NUMBERS, "Squares", parameters(2))}
    again = {process for _, process in map_tasks(square, NUMBERS, "Squares", parameters(2))}
    assert len(first | again) <= 2
    idle = [psutil.Process(process) for process in first | again]
    map_tasks(square, NUMBERS, "Squares", parameters(2, threads=2))
    assert not psutil.wait_procs(idle, timeout=20)[1]


def test_a_task_that_fails_is_named_and_the_others_are_done(tmp_path):
    with pytest.raises(InputError, match=r"1 of 4 tasks failed, all others are done:\n.*, 2\): number 2") as raised:
        map_tasks(mark_or_fail, [(tmp_path, number) for number in range(4)], "Marks", parameters(1))
    assert "number 3" not in str(raised.value)
    assert {file.name for file in tmp_path.iterdir()} == {"0", "1", "3"}


def test_three_failures_in_a_row_cancel_the_others(tmp_path):
    tasks = [(tmp_path, number) for number in (2, 0, 2, 2, 2, *range(3, 200))]
    with pytest.raises(InputError, match="4 of 202 tasks failed, the remaining tasks were cancelled"):
        map_tasks(mark_or_fail, tasks, "Marks", parameters(1))
    time.sleep(1)
    assert len(list(tmp_path.iterdir())) < 100


def test_an_error_of_the_code_keeps_its_cause():
    with pytest.raises(RuntimeError, match=r"1 of 2 tasks failed") as raised:
        map_tasks(divide, [0, 1], "Quotients", parameters(1))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_killed_worker_is_an_error_that_says_what_to_do():
    with pytest.raises(InputError, match=r"killed.*compute\.processes"):
        map_tasks(die, [0, 1, 2], "Numbers", parameters(1))


SLEEPERS = """
import os, sys, time
from pathlib import Path
from mpfm_kedro.compute import map_tasks
from mpfm_kedro.parameters import ComputeParameters

def sleep(folder):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)

map_tasks(sleep, [sys.argv[1]] * 2, "Sleep", ComputeParameters(processes=2, dask_scheduler=None))
"""


def test_workers_of_a_killed_parent_exit_in_the_middle_of_a_task(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", SLEEPERS, str(tmp_path)], stderr=subprocess.DEVNULL)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, lambda: parent.poll() is None)
    workers = [psutil.Process(int(file.name)) for file in tmp_path.iterdir()]
    assert {worker.ppid() for worker in workers} == {parent.pid}
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=20)
    for worker in alive:
        worker.kill()
    assert alive == []


def wait_until(reached, alive=lambda: True) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert alive() and time.monotonic() < deadline
        time.sleep(0.05)


# threads and memory


@given(cores=st.integers(1, 256), total=st.integers(1, 500), done=st.integers(0, 499))
def test_threads_never_oversubscribe_and_do_not_depend_on_what_is_done(cores, total, done):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compute, "cpu_count", lambda: cores)
        threads = threads_per_task(parameters(0), total)
        at_once = concurrent_tasks(parameters(0), max(1, total - done))
    assert 1 <= threads <= 8
    assert 1 <= at_once <= total
    assert threads * at_once <= cores
    assert threads == 1 or 2 * total * threads <= cores


@pytest.fixture
def eight_gigabytes(monkeypatch):
    monkeypatch.setattr(compute, "cpu_count", lambda: 16)
    memory = psutil.virtual_memory()._replace(available=8 * 10**9)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def test_memory_bounds_how_many_tasks_run_at_once(eight_gigabytes):
    assert memory_limit(parameters(memory_share=0.5)) == 4 * 10**9
    assert concurrent_tasks(parameters(0, memory_share=0.5), 100, memory=10**9) == 4
    assert concurrent_tasks(parameters(0, memory_share=1.0), 100, memory=10**9) == 8
    assert concurrent_tasks(parameters(0), 100, memory=10**10) == 1
    assert concurrent_tasks(parameters(0), 100) == 16


@pytest.fixture
def shown(monkeypatch) -> list[tuple[str, int, int]]:
    """Unit, count and total of every state of a progress bar."""
    shown: list[tuple[str, int, int]] = []
    update = Progress.update

    def noted(bar: Progress, n: int = 1) -> None:
        update(bar, n)
        shown.append((bar.unit.strip(), int(bar.n), int(bar.total or 0)))

    monkeypatch.setattr(Progress, "update", noted)
    return shown


def test_epochs_are_counted_where_there_are_some(shown, tmp_path):
    """One task has no epochs, one resumes from epoch 4, and one takes more than a second for its first five."""
    tasks = [(tmp_path / name, done) for name, done in (("none", 0), ("resumed", 4), ("slow", 0))]
    map_tasks(train, tasks, "Training", parameters(), epochs=epochs_of)
    assert {(unit, total) for unit, _, total in shown} == {("epochs", 20)}
    counts = [count for _, count, _ in shown]
    assert counts == sorted(counts) and counts[0] >= 4 and 15 in counts and counts[-1] == 20


def test_a_task_above_the_limit_is_warned_about_and_runs_alone(eight_gigabytes, caplog):
    with caplog.at_level(logging.INFO):
        assert map_tasks(refuse, [1, 3], "Numbers", parameters(2), memory=5 * 10**9) == [1, 3]
    assert "1 at once" in caplog.messages[0]
    assert "One task needs 5.0 GB, more than the limit of 4.0 GB" in caplog.messages[1]
    assert caplog.records[1].levelno == logging.WARNING


# Dask


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    once = pytest.importorskip("dask").config.set({"distributed.scheduler.allowed-failures": 1})
    with once, distributed.LocalCluster(**options, protocol="tcp://") as cluster:
        yield cluster


def on_dask(cluster, **others) -> ComputeParameters:
    return parameters(dask_scheduler=cluster.scheduler_address, **others)


def test_dask_keeps_the_order_and_the_number_of_threads(cluster):
    results = map_tasks(square, NUMBERS, "Squares", on_dask(cluster))
    assert [value for value, _ in results] == SQUARES
    assert os.getpid() not in {process for _, process in results}
    assert [map_tasks(torch_threads, [0], "Threads", on_dask(cluster, threads=n)) for n in (0, 2)] == [[1], [2]]


def test_dask_passes_errors_on_without_a_retry_and_can_be_used_again(cluster, tmp_path):
    with pytest.raises(InputError, match="cannot be used"):
        map_tasks(fail_and_count, [tmp_path], "Numbers", on_dask(cluster))
    assert len(list(tmp_path.iterdir())) == 1
    assert map_tasks(refuse, [1, 3], "Numbers", on_dask(cluster)) == [1, 3]


def test_dask_survives_a_killed_worker(cluster, tmp_path):
    tasks = [(tmp_path, number) for number in NUMBERS]
    assert map_tasks(die_once, tasks, "Numbers", on_dask(cluster)) == NUMBERS
    assert (tmp_path / "killed").exists()


def test_task_that_kills_every_dask_worker_is_named_and_all_others_are_done(cluster, tmp_path):
    tasks = [(tmp_path, number) for number in range(40)]  # more than the scheduler is given at once
    with pytest.raises(InputError, match=r"1 of 40 tasks failed, all others are done:\n.*, 2\): it killed several"):
        map_tasks(mark_or_die, tasks, "Numbers", on_dask(cluster))
    assert {int(file.name) for file in tmp_path.iterdir()} == set(range(40)) - {2}


def test_a_cluster_without_workers_is_no_endless_wait(monkeypatch):
    distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    monkeypatch.setattr(workers, "MAX_WORKERLESS_SECONDS", 1)
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None, protocol="tcp://") as cluster,
        pytest.raises(InputError, match=r"has had no worker for 1 s; start some"),
    ):
        map_tasks(square, NUMBERS, "Squares", on_dask(cluster))


def test_a_lost_scheduler_is_named(tmp_path):
    pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    here = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host=127.0.0.1", "--port=0", "--no-dashboard"]
    file = tmp_path / "scheduler.json"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([*here, f"--scheduler-file={file}"], env=environment) as scheduler:
        try:
            wait_until(file.exists)
            Timer(2, scheduler.kill).start()
            there = parameters(dask_scheduler=json.loads(file.read_text())["address"])
            with pytest.raises(InputError, match=r"the Dask scheduler at .* was lost"):
                map_tasks(square, NUMBERS, "Squares", there)
        finally:
            scheduler.kill()


@pytest.fixture
def own_clusters():
    """Clusters that a test has started end with it."""
    yield
    workers.start_cluster.cache_clear()


def test_a_local_cluster_is_started_and_kept(own_clusters):
    pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    compute = parameters(2, dask_scheduler="local")
    first, second = (map_tasks(square, NUMBERS, "Squares", compute) for _ in range(2))
    assert [value for value, _ in first] == SQUARES
    used = {process for _, process in first + second}
    assert len(used) <= 2 and os.getpid() not in used
    workers.start_cluster("local", 2).close()


def test_resources_decide_which_worker_has_a_task():
    distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    workers = {
        name: {"cls": distributed.Nanny, "options": {"nthreads": 1, "resources": resources}}
        for name, resources in (("plain", {}), ("cuda", {"CUDA": 1}))
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard_address": None, "port": 0}}
    with distributed.SpecCluster(workers=workers, scheduler=scheduler) as cluster:
        with distributed.Client(cluster) as client:
            client.wait_for_workers(2)
            names = {at: worker["name"] for at, worker in client.scheduler_info(n_workers=-1)["workers"].items()}
            having = {names[at]: process for at, process in client.run(os.getpid).items()}
        results = map_tasks(square, NUMBERS, "Squares", on_dask(cluster, dask_resources={"CUDA": 1}))
        assert {process for _, process in results} == {having["cuda"]}
        with pytest.raises(InputError, match=r"no worker .* has CUDA=2; .*--resources CUDA=2"):
            map_tasks(square, NUMBERS, "Squares", on_dask(cluster, dask_resources={"CUDA": 2}))


SBATCH = """#!/bin/sh
# what SLURM does of a job that begins at once: run its script, in the background, and tell its number
cp "$1" {folder}/script
setsid sh "$1" > {folder}/log 2>&1 &
echo "Submitted batch job $!"
"""


def test_slurm_is_asked_for_workers(tmp_path, monkeypatch, own_clusters):
    """Without SLURM: a stand-in for sbatch runs the job script here."""
    dask = pytest.importorskip("dask")
    pytest.importorskip("dask_jobqueue", reason="the extra 'slurm' is not installed")
    stands_in = {"sbatch": SBATCH.format(folder=tmp_path), "scancel": "#!/bin/sh\nkill -- -$1\n"}
    for name, text in stands_in.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    job = {"cores": 1, "memory": "1GB", "queue": "short", "walltime": "00:10:00", "interface": "lo"}
    with dask.config.set({f"jobqueue.slurm.{name}": value for name, value in job.items()}):
        try:
            results = map_tasks(square, NUMBERS, "Squares", parameters(1, dask_scheduler="slurm"))
        finally:
            workers.start_cluster("slurm", 1).close()
    assert [value for value, _ in results] == SQUARES
    assert "#SBATCH -p short" in (tmp_path / "script").read_text()


def test_slurm_needs_its_package_and_a_number_of_workers(monkeypatch):
    pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "dask_jobqueue", None)
        with pytest.raises(InputError, match=r"mpfm_kedro\[slurm\]"):
            map_tasks(square, NUMBERS, "Squares", parameters(1, dask_scheduler="slurm"))
    pytest.importorskip("dask_jobqueue", reason="the extra 'slurm' is not installed")
    with pytest.raises(InputError, match=r"compute\.processes = 0"):
        map_tasks(square, NUMBERS, "Squares", parameters(0, dask_scheduler="slurm"))
    with pytest.raises(InputError, match=r"docs/operations\.md"):
        map_tasks(square, NUMBERS, "Squares", parameters(1, dask_scheduler="slurm"))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense://here", "127.0.0.1:port"])
def test_scheduler_that_does_not_answer_is_named(address, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    client = distributed.Client
    monkeypatch.setattr(distributed, "Client", lambda address, timeout: client(address, timeout="1s"))
    with pytest.raises(InputError, match="dask_scheduler") as raised:
        map_tasks(square, NUMBERS, "Squares", parameters(dask_scheduler=address))
    assert address in str(raised.value)


# devices


def test_device():
    assert torch_device("cpu").type == "cpu"
    if torch.cuda.is_available():
        assert torch_device("auto").type == torch_device("cuda").type == "cuda"
    else:
        assert torch_device("auto").type == "cpu"
        with pytest.raises(InputError, match="'device' = 'cuda'"):
            torch_device("cuda")
