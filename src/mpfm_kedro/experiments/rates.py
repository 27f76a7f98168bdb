"""How long work took on this machine, and how large it became: what forecasts rest on.

The header of every cached piece says how many seconds its fit took and how many the reference machine would need.
Their ratio, piece by piece, is how much slower or quicker this machine is, with all that runs on it beside.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from safetensors import SafetensorError, safe_open

from mpfm_kedro.detectors.pieces import Piece
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.cache import SUFFIX, ArtefactFile, Cache
from mpfm_kedro.experiments.expected import EXPECTED

NEWEST = 12  # files of each kind that are looked at: older ones may be of another machine
NOT_FITTED = {"scores", "pixels", "checkpoint"}
LONG_ENOUGH = 1.0  # expected seconds: shorter fits, as those of --env=test, tell how long a start takes
UNMEASURED_BYTES = 4_000_000  # of a piece, as most have on ELPV
UNMEASURED_SCORING = 0.01  # seconds per sample


@dataclass(frozen=True)
class Fitted:
    """What the file of one fitted piece says of its fit."""

    seconds: float
    expected: float
    parameters: dict[str, Any]
    size: int


@dataclass(frozen=True)
class Rates:
    """Rates of this machine; where nothing was measured, those of the reference machine.

    Args:
        fitted: the newest pieces by their name.
        scoring: seconds per scored sample.
    """

    fitted: dict[str, list[Fitted]] = field(default_factory=dict)
    scoring: float | None = None

    def slowness(self, piece: Piece) -> float:
        """Measured over expected seconds: of this piece with its parameters, else with any, else of all pieces."""
        own = self.fitted.get(piece.name, [])
        same = [one for one in own if one.parameters == piece.parameters]
        everything = [one for several in self.fitted.values() for one in several]
        long = [[one for one in fits if one.expected >= LONG_ENOUGH] for fits in (own, everything)]
        return next((ratio for fits in (same, *long) if (ratio := _ratio(fits))), 1.0)

    def size(self, piece: Piece) -> float:
        """Bytes of the file of a piece."""
        own = self.fitted.get(piece.name) or [one for several in self.fitted.values() for one in several]
        return sum(one.size for one in own) / len(own) if own else UNMEASURED_BYTES

    @property
    def seconds_per_score(self) -> float:
        """Seconds per scored sample."""
        return UNMEASURED_SCORING if self.scoring is None else self.scoring


def measured_rates(cache: Cache) -> Rates:
    """The rates that the newest files of a cache tell."""
    files = _newest_files(cache)
    fitted = {kind: _fits(own) for kind, own in files.items() if kind not in NOT_FITTED}
    return Rates({kind: own for kind, own in fitted.items() if own}, _scoring(files.get("scores", [])))


def _newest_files(cache: Cache) -> dict[str, list[ArtefactFile]]:
    by_kind = defaultdict(list)
    for path in cache.root.glob(f"*{SUFFIX}"):
        by_kind[path.name.rpartition("-")[0]].append((path.stat().st_mtime, path))
    return {kind: [ArtefactFile(path) for _, path in heapq.nlargest(NEWEST, own)] for kind, own in by_kind.items()}


def _fits(files: Iterable[ArtefactFile]) -> list[Fitted]:
    found = []
    for file in files:
        try:
            details, size = file.details, file.path.stat().st_size
        except (InputError, OSError):  # damaged, which is not the forecast's concern, or just replaced
            continue
        if details.get(EXPECTED):
            found.append(Fitted(details["seconds"], details[EXPECTED], details["parameters"], size))
    return found


def _scoring(files: Iterable[ArtefactFile]) -> float | None:
    seconds = samples = 0.0
    for file in files:
        try:
            with safe_open(file.path, framework="np") as content:
                samples += content.get_slice("score").get_shape()[0]
            seconds += file.details["seconds"]
        except (InputError, OSError, SafetensorError, KeyError):
            continue
    return seconds / samples if samples else None


def _ratio(fits: list[Fitted]) -> float | None:
    return sum(one.seconds for one in fits) / sum(one.expected for one in fits) if fits else None
