"""What a study needs before it begins: trials, pieces, seconds, disk and memory, of what is not cached yet."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.experiments.cache import Cache
from mpfm_kedro.experiments.expected import EXPECTED
from mpfm_kedro.experiments.rates import Rates, measured_rates
from mpfm_kedro.experiments.trials import Trial, memory_of_fits, plan_pieces, samples_to_score
from mpfm_kedro.files import in_units
from mpfm_kedro.parallel import concurrent_tasks, memory_limit
from mpfm_kedro.parameters import ComputeParameters
from mpfm_kedro.progress import in_words

SCORE_BYTES = 64  # of one scored sample


@dataclass(frozen=True)
class Need:
    """What the work on one dataset needs.

    Args:
        images: samples of the dataset.
        views: images that the backbone sees, augmented ones included.
        new_views: those whose features are not stored yet.
        trials: runs × specifications.
        pieces: distinct pieces of their fits.
        new_pieces: those that are not cached yet.
        extraction_seconds: of the new views.
        fit_seconds: of the new pieces, on one core.
        score_seconds: of all that is not scored yet, on one core.
        at_once: how many tasks run at once; 0 on a Dask cluster, which decides for itself.
        disk_bytes: of new features, pieces and scores.
        memory_bytes: of the tasks that run at once.
        memory_limit: what ``compute.memory_share`` allows them.
        measured: whether the rates are those of this machine.
    """

    images: int
    views: int
    new_views: int
    trials: int
    pieces: int
    new_pieces: int
    extraction_seconds: float
    fit_seconds: float
    score_seconds: float
    at_once: int
    disk_bytes: int
    memory_bytes: int
    memory_limit: int
    measured: bool

    @property
    def seconds(self) -> float:
        """Until all is done; on a Dask cluster of unknown size, with one task at a time."""
        return self.extraction_seconds + (self.fit_seconds + self.score_seconds) / max(1, self.at_once)

    @classmethod
    def read(cls, file: Path) -> Need:
        """The need that a forecast has written."""
        return cls(**json.loads(file.read_text(encoding="utf-8")))

    def as_record(self) -> dict[str, Any]:
        """All numbers by name."""
        return {name: round(value, 1) if isinstance(value, float) else value for name, value in asdict(self).items()}


def forecast_trials(
    trials: list[Trial], features: Features, cache: Cache, device: str, compute: ComputeParameters
) -> dict[str, Any]:
    """The part of a need that fitting and scoring have, by name.

    Args:
        trials: all that are wanted.
        features: views and specifications; no row of the store is read, so none needs to be there.
        cache: where finished pieces and scores are.
        device: auto, cpu or cuda.
        compute: how many tasks at once.
    """
    rates = measured_rates(cache)
    initial = plan_pieces(trials, features, cache, None, device)
    entries = {name: task.entry for name, task in initial.items()}
    planned = initial | plan_pieces(trials, features, cache, entries, device)
    distinct = list({task.entry.path: task for task in planned.values()}.values())
    new = [task for task in distinct if not task.entry.exists()]
    models = {name: task.entry for name, task in planned.items()}
    unscored = samples_to_score(trials, features, models, cache)
    need = memory_of_fits(new or distinct[:1])  # scoring takes no more
    on_dask = compute.dask_scheduler is not None
    at_once = 0 if on_dask else concurrent_tasks(compute, device, max(1, len(new), len(unscored)), need)
    return {
        "trials": len(trials),
        "pieces": len(distinct),
        "new_pieces": len(new),
        "fit_seconds": float(sum(task.details[EXPECTED] * rates.slowness(task.piece) for task in new)),
        "score_seconds": float(sum(unscored) * rates.seconds_per_score),
        "at_once": at_once,
        "disk_bytes": int(sum(rates.size(task.piece) for task in new) + SCORE_BYTES * sum(unscored)),
        "memory_bytes": need * max(1, at_once),
        "memory_limit": memory_limit(compute),
        "measured": rates != Rates(),
    }


def describe_need(name: str, need: Need) -> str:
    """One line for people."""
    parts = [
        f"{need.trials:,} trials",
        f"{need.new_pieces:,} of {need.pieces:,} fits remain",
        f"{need.images:,} images",
        f"{need.new_views:,} of {need.views:,} views to extract",
        f"about {in_words(need.seconds)}" + ("" if need.at_once else " on one core"),
        f"{in_units(need.disk_bytes)} of disk",
        f"{need.memory_bytes / 1e9:.1f} GB of memory",
    ]
    return f"{name}: {', '.join(parts)}"
