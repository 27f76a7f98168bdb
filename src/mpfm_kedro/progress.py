"""Progress of long loops: a bar on a terminal, log lines otherwise; both with the remaining time."""

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

logger = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 20.0
BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit} [{elapsed}, {rate_fmt}, {remaining} remaining]"
LINE = "{desc}: {n_fmt} of {total_fmt}{unit}, {rate_fmt}, {remaining} remaining"


class Progress(tqdm):
    """A tqdm bar that logs lines where there is no terminal; work of an earlier run does not count for the rate."""

    monitor_interval = 0  # no thread of its own

    def __init__(self, label: str, total: int, unit: str, done: int = 0) -> None:
        self.on_terminal, self.ends = sys.stderr.isatty(), (done, total)
        super().__init__(
            desc=label,
            total=total,
            initial=done,
            unit=f" {unit}",
            bar_format=BAR if self.on_terminal else LINE,
            mininterval=0.1 if self.on_terminal else SECONDS_BETWEEN_LINES,
            miniters=1,
            smoothing=0,
            dynamic_ncols=self.on_terminal,
            file=None if self.on_terminal else io.StringIO(),  # tqdm would write control characters
        )

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Draw the bar, or log a line."""
        if self.on_terminal:
            super().display(msg, pos)
        elif self.ends[0] < self.n < self.ends[1]:  # on the way
            logger.info(str(self))


@contextmanager
def progress(label: str, total: int, unit: str, done: int = 0) -> Iterator[Progress]:
    """Show the progress of a loop over ``total`` units, ``done`` of which were finished by an earlier run."""
    with logging_redirect_tqdm(), Progress(label, total, unit, done) as bar:
        yield bar
