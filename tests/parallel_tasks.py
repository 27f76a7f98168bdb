"""Tasks for the tests of parallel work; a module of their own without torch, so that workers start quickly."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

from mpfm_kedro.errors import InputError


def square(number: int) -> tuple[int, int]:
    time.sleep(0.05 * (number == 0))  # the first is the last to be ready
    return number**2, os.getpid()


def torch_threads(_: int) -> int:
    import torch

    return torch.get_num_threads()


def refuse(number: int) -> int:
    if number == 2:
        raise InputError(f"number {number} cannot be used")
    return number


def fail_and_count(folder: Path) -> None:
    (folder / str(time.monotonic_ns())).touch()
    raise InputError("cannot be used")


def mark(task: tuple[Path, int]) -> None:
    """The first task fails when the second has begun; the second would leave a mark after a while."""
    folder, number = task
    if number == 0:
        while not (folder / "begun").exists():
            time.sleep(0.02)
        raise InputError("number 0 cannot be used")
    (folder / "begun").touch()
    time.sleep(1.5)
    (folder / str(number)).touch()


def die(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_once(task: tuple[Path, int]) -> int:
    """The third task kills its worker, but only the first time."""
    folder, number = task
    if number == 2 and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def environment(name: str) -> str | None:
    return os.environ.get(name)


def log_level(_: int) -> int:
    return logging.getLogger("mpfm_kedro").getEffectiveLevel()
