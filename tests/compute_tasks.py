"""Tasks for the tests of parallel work; a module of their own without torch, so that workers start quickly."""

from __future__ import annotations

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


def mark_or_fail(task: tuple[Path, int]) -> None:
    """Leave a mark; number 2 fails."""
    folder, number = task
    if number == 2:
        raise InputError(f"number {number} cannot be used")
    (folder / str(number)).touch()
    time.sleep(0.02)


def mark_or_die(task: tuple[Path, int]) -> None:
    """Leave a mark; number 2 kills its worker."""
    folder, number = task
    die(number - 1)
    (folder / str(number)).touch()


def divide(number: int) -> float:
    return 1 / number


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


def train(task: tuple[Path, int]) -> None:
    """Note ten epochs in a file; the slow task waits for a second and a half after five of them."""
    file, _ = task
    if file.name != "none":
        file.write_text("5")
        time.sleep(1.5 * (file.name == "slow"))
        file.write_text("10")


def epochs_of(task: tuple[Path, int]) -> tuple[int, int]:
    """Epochs that a task of ``train`` has done and will do."""
    file, done = task
    return (int(file.read_text() or 0) if file.exists() else done, 0 if file.name == "none" else 10)
