"""The parameters of the project; fits in this process, where a test needs to see or to interrupt them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mpfm_kedro.parameters import Parameters
from protocol.small_tables import project_parameters


@pytest.fixture(scope="session")
def parameters() -> Parameters:
    """Those of conf/base, which are frozen."""
    return project_parameters()


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tasks that were done since the test began, in this process."""
    done: list[Any] = []

    def work(function: Callable[..., Any], tasks: list[Any], *_: Any) -> None:
        for task in tasks:
            function(task)
            done.append(task)

    monkeypatch.setattr("mpfm_kedro.protocol.fits.map_tasks", work)
    return done
