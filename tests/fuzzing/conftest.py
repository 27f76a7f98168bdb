"""How long to try, and a count of what was tried: ``make fuzz`` sets FUZZ_SHARE, ``make test`` tries a little."""

from __future__ import annotations

import os
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TRIED: Counter[str] = Counter()
SHARE = float(os.environ.get("FUZZ_SHARE", "0.01"))
SECONDS = 120  # for one input: more is a hang, also on a busy machine
MEGABYTES = 600  # that no input may add to the memory
CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


def inputs(number: int) -> Callable:
    """Settings for a test that tries ``number`` inputs in the long form."""
    some = max(20, round(number * SHARE))
    return settings(max_examples=some, deadline=None, database=None, suppress_health_check=CHECKS)


@pytest.fixture
def attempt(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Call a reader within limits: ``attempt(lambda: read(...), allowed errors…)``."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    name = request.node.originalname

    def call(read: Callable[[], object], *allowed: type[Exception]) -> None:
        TRIED[name] += 1
        signal.alarm(SECONDS)
        try:
            read()
        except allowed:
            pass
        finally:
            signal.alarm(0)

    yield call
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert added < MEGABYTES, f"{added:.0f} MB more memory"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a process of pytest-xdist, hand the numbers to the one that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["tried"] = dict(TRIED)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the numbers of a process of pytest-xdist."""
    TRIED.update(getattr(node, "workeroutput", {}).get("tried", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many inputs were tried."""
    for name, number in sorted(TRIED.items()):
        terminalreporter.write_line(f"{number:8d} inputs: {name}")
    if TRIED:
        terminalreporter.write_line(f"{sum(TRIED.values()):8d} inputs in all")
