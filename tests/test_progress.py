"""Progress: log lines with the remaining time where there is no terminal, a bar where there is one."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from mpfm_kedro.progress import progress


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The time that tqdm sees."""
    now = [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


@pytest.mark.parametrize(("seconds", "lines"), [(1, 4), (0, 0)])
def test_a_line_from_time_to_time_and_none_at_the_end(seconds, lines, clock, caplog):
    with caplog.at_level(logging.INFO), progress("Features", 100, "images") as bar:
        for _ in range(100):
            clock[0] += seconds
            bar.update()
    assert len(caplog.messages) == lines
    if lines:
        assert caplog.messages[0] == "Features: 20 of 100 images,  1.00 images/s, 01:20 remaining"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_no_lines_also_when_the_loop_fails(clock, caplog, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with caplog.at_level(logging.INFO), pytest.raises(KeyboardInterrupt), progress("Features", 4, "images") as bar:
        for _ in range(3):
            clock[0] += 100
            bar.update()
        raise KeyboardInterrupt
    assert "Features:  75%" in terminal.getvalue() and "3/4 images" in terminal.getvalue()
    assert "01:40 remaining" in terminal.getvalue() and terminal.getvalue().endswith("\n")
    assert caplog.records == []
