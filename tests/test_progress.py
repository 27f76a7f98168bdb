"""Progress: log lines with the remaining time where there is no terminal, a bar where there is one."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from mpfm_kedro import progress as module
from mpfm_kedro.progress import Progress, in_words, progress


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_line_from_time_to_time_and_none_at_the_end(clock, caplog):
    with caplog.at_level(logging.INFO), progress("Features", 100, "images") as bar:
        for _ in range(100):
            clock.now += 1
            bar.advance()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert lines[0] == "Features: 21 of 100 images, 1 images/s, about 79 s remaining"


def test_a_quick_loop_says_nothing(clock, caplog):
    with caplog.at_level(logging.INFO), progress("Features", 1000, "images") as bar:
        for _ in range(1000):
            bar.advance()
    assert caplog.records == []


def test_work_of_an_earlier_run_counts_as_done_but_not_for_the_rate(clock):
    bar = Progress("Features", 100, "images", done=60)
    clock.now += 10
    bar.advance(20)
    assert bar.done == 80
    assert "80 of 100 images, 2 images/s, about 10 s remaining" in bar.line()


def test_nothing_done_yet_is_no_division_by_zero(clock):
    assert Progress("Runs", 5, "runs").line() == "Runs: 0 of 5 runs, 0 runs/s, remaining time unknown"


def test_counts_never_go_back(clock):
    bar = Progress("Training", 100, "epochs", done=10)
    for done in (12, 11, 30):
        bar.reach(done)
    assert bar.done == 30


@pytest.mark.parametrize(("seconds", "words"), [(0, "0 s"), (119, "119 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations_in_words(seconds, words):
    assert in_words(seconds) == words


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_no_lines(clock, caplog, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with caplog.at_level(logging.INFO), progress("Features", 3, "images") as bar:
        for _ in range(3):
            clock.now += 100
            bar.advance()
    assert "Features: 100%" in terminal.getvalue()
    assert "3/3 images" in terminal.getvalue() and "about 0 s remaining" in terminal.getvalue()
    assert caplog.records == []


def test_the_bar_is_closed_when_the_loop_fails(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(KeyboardInterrupt), progress("Features", 3, "images") as bar:
        raise KeyboardInterrupt
    assert bar._bar is not None
    assert bar._bar.disable
