"""The map over runs: the same results in order from one process, several, or a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest
import torch

from mpfm_kedro.compute import map_runs, torch_device
from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import ComputeParameters


def parameters(processes: int = 1, dask_scheduler: str | None = None) -> ComputeParameters:
    return ComputeParameters(processes=processes, dask_scheduler=dask_scheduler)


def square(number: int) -> tuple[int, int, int]:
    time.sleep(0.05 * (number == 0))  # the first is the last to be ready
    return number**2, os.getpid(), torch.get_num_threads()


def refuse(number: int) -> int:
    if number == 2:
        raise InputError(f"number {number} cannot be used")
    return number


NUMBERS = [0, 1, 2, 3, 4]
SQUARES = [0, 1, 4, 9, 16]


def test_one_process_works_here_and_in_order():
    results = map_runs(square, NUMBERS, "Squares", parameters())
    assert [value for value, *_ in results] == SQUARES
    assert {process for _, process, _ in results} == {os.getpid()}


def test_two_processes_keep_the_order_and_share_the_cores():
    results = map_runs(square, NUMBERS, "Squares", parameters(2))
    assert [value for value, *_ in results] == SQUARES
    assert os.getpid() not in {process for _, process, _ in results}
    assert {threads for *_, threads in results} == {max(1, (os.cpu_count() or 1) // 2)}
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("processes", [1, 2])
def test_error_of_a_task_reaches_the_user_as_it_is(processes):
    with pytest.raises(InputError, match="number 2 cannot be used"):
        map_runs(refuse, NUMBERS, "Numbers", parameters(processes))


def test_no_task_is_no_result():
    assert map_runs(square, [], "Squares", parameters(0)) == []


@pytest.fixture(scope="module")
def scheduler():
    distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**options, protocol="tcp://") as cluster:
        yield cluster.scheduler_address


def test_dask_keeps_the_order(scheduler):
    assert scheduler.startswith("tcp://")
    results = map_runs(square, NUMBERS, "Squares", parameters(dask_scheduler=scheduler))
    assert [value for value, *_ in results] == SQUARES


def test_dask_passes_errors_on_and_can_be_used_again(scheduler):
    with pytest.raises(InputError, match="number 2 cannot be used"):
        map_runs(refuse, NUMBERS, "Numbers", parameters(dask_scheduler=scheduler))
    assert map_runs(refuse, [1, 3], "Numbers", parameters(dask_scheduler=scheduler)) == [1, 3]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense://here", "127.0.0.1:port"])
def test_scheduler_that_does_not_answer_is_named(address, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="the extra 'dask' is not installed")
    client = distributed.Client
    monkeypatch.setattr(distributed, "Client", lambda address, timeout: client(address, timeout="1s"))
    began = time.monotonic()
    with pytest.raises(InputError, match="dask_scheduler") as raised:
        map_runs(square, NUMBERS, "Squares", parameters(dask_scheduler=address))
    assert address in str(raised.value)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("cuda", [True, False])
def test_device(cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert torch_device("auto").type == ("cuda" if cuda else "cpu")
    assert torch_device("cpu").type == "cpu"
    if cuda:
        assert torch_device("cuda").type == "cuda"
    else:
        with pytest.raises(InputError, match="'device' = 'cuda'"):
            torch_device("cuda")


def test_missing_cuda_is_said_before_any_task_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done: list[int] = []
    with pytest.raises(InputError, match="cuda"):
        map_runs(done.append, [1, 2], "Numbers", parameters(), device="cuda")
    assert done == []


def test_on_cuda_one_task_at_a_time_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    results = map_runs(square, [1, 2], "Squares", parameters(0), device="auto")
    assert {process for _, process, _ in results} == {os.getpid()}
