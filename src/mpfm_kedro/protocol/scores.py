"""Scores of test samples, and of their pixels where there are masks: by MPFM, and by baselines.

MPFM is loaded from its fits. A baseline is fitted and scored in one task, and only its scores are kept: nothing reads
its model afterwards.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.compute import torch_device
from mpfm_kedro.detectors.mpfm.specification import SCORING_VERSION
from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.columns import COSTS, PART_COLUMNS, PIXEL_MEASURES, RUN, SCORES, TRIAL
from mpfm_kedro.evaluation.pixel_measures import Marked, PixelCounts, measure_maps
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.views import ORIGINAL
from mpfm_kedro.parameters import ComputeParameters
from mpfm_kedro.protocol import data
from mpfm_kedro.protocol.data import contents, learned_digest, select, training_data
from mpfm_kedro.protocol.fits import POOLED_COPIES, PROCESS_BYTES, Plan, Task
from mpfm_kedro.protocol.memory import Entry, Memory
from mpfm_kedro.protocol.trials import Trial
from mpfm_kedro.provenance import key_digest, library_versions
from mpfm_kedro.sources.samples import sample_size

if TYPE_CHECKING:  # torch is slow to import
    from mpfm_kedro.detectors.base import Detector
    from mpfm_kedro.detectors.mpfm.detector import MPFMDetector

PIXELS_VERSION = 1  # of the measures of pixels, raised when a change of the code changes them
LONGEST_SIDE = 1024  # pixels of larger images are counted in this size
NO_MODE = -1
Groups = list[tuple[list[Trial], "ScoreTask"]]  # trials that share a detector, and their task


@dataclass(frozen=True)
class TestSet:
    """Samples that one detector scores, and where they are defective."""

    samples: list[str]  # of all trials that share the detector
    marked: list[Marked | None]  # None: it is not known where; empty where no sample has a mask
    folder: Path  # of the masks
    subsets: list[list[int]]  # positions of the test samples of each of these trials

    @classmethod
    def of(cls, trials: Sequence[Trial], marked: dict[str, Marked | None], folder: Path) -> TestSet:
        """The union of the test samples of some trials."""
        rank = {name: i for i, name in enumerate(dict.fromkeys(name for trial in trials for name in trial.tested))}
        subsets = dict.fromkeys(tuple(rank[name] for name in trial.tested) for trial in trials)
        tests = cls(list(rank), [marked[name] for name in rank], folder, [list(subset) for subset in subsets])
        return tests if tests.masks else replace(tests, marked=[])

    @property
    def masks(self) -> list[str]:
        """The files of all masks."""
        return sorted({name for one in self.marked if one and one.mask_path for name in one.mask_path.split("|")})

    def described(self, features: Features, mask_digest: Callable[[Path], str]) -> dict[str, Any]:
        """What keys say of it."""
        marked = [asdict(one) if one else None for one in self.marked]
        return {
            "samples": self.samples,
            "contents": contents(self.samples, features, [ORIGINAL]),
            "pixels": [self.subsets, marked] if marked else None,
            "masks": [mask_digest(self.folder / name) for name in self.masks],
            "versions": [data.VERSION, PIXELS_VERSION],
            "libraries": library_versions(),
        }


@dataclass(frozen=True, kw_only=True)
class ScoreTask(Task):
    """Test samples to be scored by one detector: MPFM, fitted already, or a baseline that is fitted now."""

    tests: TestSet
    fits: dict[str, Entry]
    baseline: str = ""
    steps: int = 0

    def __str__(self) -> str:
        return f"{self.baseline or 'MPFM'}: scores of {len(self.tests.samples)} samples"

    def work(self) -> None:
        """Score samples, measure their pixels where there are masks, and keep both."""
        import torch  # slow to import

        from mpfm_kedro.detectors.base import Artefact

        began = time.monotonic()
        detector = self._detector()
        rows = select(self.features, np.array(self.tests.samples), [ORIGINAL])
        values = {name: value for name, value in vars(detector.score_samples(rows)).items() if value is not None}
        tensors = {name: torch.from_numpy(np.asarray(value)) for name, value in values.items()}
        tensors["score"] = tensors["score"].double()
        maps = detector.position_scores(rows) if self.tests.marked else None
        if maps is not None:
            padded = self.features.store.spec.keep_proportions
            pixels = measure_maps(maps, self.tests.marked, self.tests.folder, self.tests.subsets, padded)
            tensors["pixels"] = torch.from_numpy(pixels)
        self.memory.save(self.entry, Artefact(tensors), time.monotonic() - began)

    def _detector(self) -> Detector | MPFMDetector:
        import torch

        from mpfm_kedro.detectors.base import Context
        from mpfm_kedro.detectors.mpfm.detector import load
        from mpfm_kedro.detectors.registry import baseline

        device = torch_device(self.device)
        if not self.baseline:
            return load({name: self.memory.load(entry) for name, entry in self.fits.items()}, device)
        learned = training_data(self.run, self.features)
        with torch.random.fork_rng(devices=[]):
            return baseline(self.baseline)(self.steps).fit(learned, self.run["seed"], Context(device))

    def need(self) -> int:
        """The process, pooled statistics, position maps, histograms of pixels."""
        n, sizes = len(self.tests.samples), sum(spec.pooled_size for spec in self.features.specs)
        n += len(self.run["train_normals"]) if self.baseline else 0
        positions = int(np.prod(self.features.store.spec.map_shape[1:])) if self.tests.marked else 0
        histograms = len(self.tests.subsets) * PixelCounts().counts.nbytes if self.tests.marked else 0
        return PROCESS_BYTES + POOLED_COPIES * n * 4 * sizes + 4 * positions * n * 4 + histograms


def plan_scores(
    trials: Sequence[Trial],
    features: Features,
    samples: pd.DataFrame,
    images: ImageLoader,
    compute: ComputeParameters,
    steps: int = 0,
) -> tuple[Plan, Plan, Plan]:
    """Plan scores, pixel measures and costs; trials that share a detector are scored together.

    Trials of MPFM have all fits. Those of a baseline that needs known anomalies are skipped where there are none.
    """
    from mpfm_kedro.detectors.registry import baseline  # with torch, which is slow to import

    digest, mask_digest = cache(partial(learned_digest, features=features)), cache(_file_digest)
    sharing: dict[str, tuple[dict[str, Any], list[Trial]]] = {}
    for trial in trials:
        if trial.method.mpfm:
            detector = {"fits": [entry.key for entry in trial.fits.values()], "version": SCORING_VERSION}
        elif trial.run["known_anomalies"] or not baseline(trial.method.name).supervised:
            detector = _describe_baseline(trial, steps, digest) | {"features": features.spec_digest}
        else:
            continue
        sharing.setdefault(key_digest(detector), (detector, []))[1].append(trial)
    marked, groups = where_marked(samples), []
    for detector, members in sharing.values():
        first, tests = members[0], TestSet.of(members, marked, images.folder)
        name = "" if first.method.mpfm else first.method.name
        key = key_digest(detector | tests.described(features, mask_digest))
        entry = Entry("baselines" if name else "scores", key)
        run = first.learned_run(not name or baseline(name).supervised)
        task = ScoreTask(entry, run, features, compute.device, tests=tests, fits=first.fits, baseline=name, steps=steps)
        groups.append((members, task))
    tasks = [task for _, task in groups]
    scores, pixels, costs = (
        Plan("Scoring", tasks, compute, partial(tabulate, groups))
        for tabulate in (tabulate_scores, tabulate_pixels, tabulate_costs)
    )
    return scores, pixels, costs


def _describe_baseline(
    trial: Trial, steps: int, digest: Callable[[tuple[str, ...], bool, bool], str]
) -> dict[str, Any]:
    """What decides a fitted baseline, but the features; one that reads no anomaly is shared by runs with other ones."""
    from mpfm_kedro.detectors.registry import baseline  # with torch, which is slow to import

    detector = baseline(trial.method.name)
    run = trial.learned_run(detector.supervised)
    return {
        "baseline": detector.name,
        "version": detector.version,
        "steps": steps if "{steps}" in detector.budget else None,
        "seed": run["seed"] if detector.random else None,
        "data": digest((*run["train_normals"], *run["known_anomalies"]), run["by_item"], True),
    }


def where_marked(samples: pd.DataFrame) -> dict[str, Marked | None]:
    """Where each sample is defective; None for an anomaly without a mask."""
    marked: dict[str, Marked | None] = {}
    for row in samples[["sample_id", "label", "mask_path", "crop", "width", "height"]].to_dict("records"):
        width, height = sample_size(row["crop"], row["width"], row["height"])
        factor = min(1, LONGEST_SIDE / max(width, height, 1))
        size = max(1, round(factor * width)), max(1, round(factor * height))
        unknown = row["label"] == 1 and not row["mask_path"]
        marked[row["sample_id"]] = None if unknown else Marked(row["mask_path"], row["crop"], size)
    return marked


def tabulate_scores(groups: Groups, memory: Memory) -> pd.DataFrame:
    """One row per trial and test sample; the four scores of MPFM, and its mode."""
    tables = {}
    for trials, task in groups:
        values = {name: value.numpy() for name, value in memory.load(task.entry).tensors.items()}
        scored = pd.DataFrame({"sample": task.tests.samples, "score": values["score"]}, index=task.tests.samples)
        scored[PART_COLUMNS] = values.get("parts", np.nan)
        scored["mode"] = values.get("mode", NO_MODE)
        for trial in trials:
            described = {name: trial.run[name] for name in RUN} | {"method": trial.method.name}
            label = np.repeat([0, 1], [len(trial.run["test_normals"]), len(trial.run["test_anomalies"])])
            tables[trial.order] = scored.loc[trial.tested].assign(**described, label=label)[SCORES]
    ordered = [tables[order] for order in sorted(tables)]
    return pd.concat(ordered, ignore_index=True) if ordered else pd.DataFrame(columns=SCORES)


def tabulate_pixels(groups: Groups, memory: Memory) -> pd.DataFrame:
    """Pixel AUROC, AUPRO and best pixel F1 of each trial whose detector localises; no rows where there are no masks."""
    rows = []
    for trials, task in groups:
        pixels = memory.load(task.entry).tensors.get("pixels")
        rank = {sample: i for i, sample in enumerate(task.tests.samples)}
        for trial in trials:
            if pixels is None:
                continue
            measured = pixels[task.tests.subsets.index([rank[sample] for sample in trial.tested])].tolist()
            rows.append(trial.name | dict(zip(PIXEL_MEASURES, measured, strict=True)))
    return pd.DataFrame(rows, columns=[*TRIAL, *PIXEL_MEASURES]).dropna(subset=PIXEL_MEASURES, ignore_index=True)


def tabulate_costs(groups: Groups, memory: Memory) -> pd.DataFrame:
    """Seconds of each trial: its fits, and its share of scoring what several trials score together."""
    rows = []
    for trials, task in groups:
        fits = sum(memory.seconds(entry) for entry in task.fits.values())
        for trial in trials:
            share = len(trial.tested) / len(task.tests.samples) if task.fits else 1
            rows.append(trial.name | {"seconds": round(fits + share * memory.seconds(task.entry), 2)})
    return pd.DataFrame(rows, columns=COSTS)


def _file_digest(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()[:24]
    except OSError as error:
        reason = f"{error.strerror}; was it there when samples were listed?"
        raise InputError(f"Cannot read the mask {file}: {reason}") from error
