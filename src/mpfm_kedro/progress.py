"""Progress of long loops: a bar with the remaining time on a terminal, log lines otherwise."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

logger = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 20.0
BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit} [{elapsed}, {rate_fmt}{postfix}]"


class Progress:
    """Counts what is done of ``total`` and reports it; ``advance`` is called after each unit of work."""

    def __init__(self, label: str, total: int, unit: str, done: int = 0) -> None:
        self.label, self.total, self.unit, self.done = label, total, unit, done
        self._first = done
        self._start = self._reported = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total, initial=done, desc=label, unit=f" {unit}", dynamic_ncols=True, bar_format=BAR)

    def advance(self, n: int = 1) -> None:
        """Count ``n`` more."""
        self.reach(self.done + n)

    def reach(self, done: int) -> None:
        """Count up to ``done``; never backwards."""
        more = max(0, done - self.done)
        self.done += more
        if self._bar is not None:
            self._bar.set_postfix_str(self._remaining(), refresh=False)
            self._bar.update(more)
        elif time.monotonic() - self._reported > SECONDS_BETWEEN_LINES and self.done < self.total:
            self._reported = time.monotonic()
            logger.info("%s", self.line())

    def line(self) -> str:
        """What is done, the rate since this start, and the remaining time."""
        rate = (self.done - self._first) / max(time.monotonic() - self._start, 1e-9)
        return f"{self.label}: {self.done} of {self.total} {self.unit}, {rate:.3g} {self.unit}/s, {self._remaining()}"

    def _remaining(self) -> str:
        if self.done == self._first:
            return "remaining time unknown"
        seconds = (self.total - self.done) * (time.monotonic() - self._start) / (self.done - self._first)
        return f"about {in_words(seconds)} remaining"

    def close(self) -> None:
        """Finish the bar."""
        if self._bar is not None:
            self._bar.close()


def in_words(seconds: float) -> str:
    """A duration as people say it: 40 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@contextmanager
def progress(label: str, total: int, unit: str, done: int = 0) -> Iterator[Progress]:
    """Show the progress of a loop over ``total`` units, ``done`` of which were finished by an earlier run."""
    counter = Progress(label, total, unit, done)
    try:
        with logging_redirect_tqdm():
            yield counter
    finally:
        counter.close()
