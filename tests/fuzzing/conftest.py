"""How long to try: ``make fuzz`` sets FUZZ_SHARE, ``make test`` tries a little."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

SHARE = float(os.environ.get("FUZZ_SHARE", "0.01"))
SECONDS = 120  # for one input: more is a hang, also on a busy machine
MEGABYTES = 600  # that no input may add to the memory
CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


def inputs(number: int, least: int = 20) -> Callable:
    """Settings for a test that tries ``number`` inputs in the long form."""
    some = max(least, round(number * SHARE))
    return settings(max_examples=some, deadline=None, database=None, suppress_health_check=CHECKS)


@pytest.fixture
def attempt() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Call a reader within limits: ``attempt(lambda: read(...), allowed errors…)``."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def call(read: Callable[[], object], *allowed: type[Exception]) -> None:
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
