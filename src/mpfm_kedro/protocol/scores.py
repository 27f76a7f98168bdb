"""Scores of test samples, and of their pixels where there are masks: by MPFM, and by baselines.

MPFM is loaded from its fits. A baseline is fitted and scored in one task, and only its scores are kept: nothing reads
its model afterwards.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.compute import map_tasks, torch_device
from mpfm_kedro.detectors.mpfm.specification import SCORING_VERSION
from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.columns import COSTS, PART_COLUMNS, PIXEL_MEASURES, RUN, SCORES, TRIAL
from mpfm_kedro.evaluation.pixel_measures import Marked, PixelCounts, measure_maps
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.views import ORIGINAL
from mpfm_kedro.parameters import ComputeParameters
from mpfm_kedro.protocol import data
from mpfm_kedro.protocol.data import contents, learned_digest, select, training_data
from mpfm_kedro.protocol.fits import POOLED_COPIES, PROCESS_BYTES
from mpfm_kedro.protocol.memory import Entry, Memory
from mpfm_kedro.protocol.trials import Trial, group_by, tested
from mpfm_kedro.provenance import key_digest, library_versions
from mpfm_kedro.sources.samples import parse_crop

if TYPE_CHECKING:  # torch is slow to import
    import torch

    from mpfm_kedro.detectors.base import Detector
    from mpfm_kedro.detectors.mpfm.detector import MPFMDetector

PIXELS_VERSION = 1  # of the measures of pixels, raised when a change of the code changes them
LONGEST_SIDE = 1024  # pixels of larger images are counted in this size
NO_MODE = -1
BASELINES = "baselines"


@dataclass(frozen=True)
class TestSet:
    """Samples that one detector scores, and where they are defective.

    Args:
        samples: of all trials that share the detector.
        marked: where each is defective, None where it is not known; empty where no sample has a mask.
        folder: of the masks.
        subsets: positions of the test samples of each of these trials.
    """

    samples: list[str]
    marked: list[Marked | None]
    folder: Path
    subsets: list[list[int]]


@dataclass(frozen=True)
class ScoreTask:
    """Test samples to be scored by one detector: fitted already, or a baseline that is fitted now."""

    entry: Entry
    tests: TestSet
    features: Features
    device: str
    fits: dict[str, Entry]
    baseline: str = ""
    steps: int = 0
    run: dict[str, Any] | None = None
    memory: Memory | None = None

    def __str__(self) -> str:
        return f"{self.baseline or 'MPFM'}: scores of {len(self.tests.samples)} samples"


@dataclass(frozen=True)
class ScorePlan:
    """Trials in groups that share a detector, with the task of each group; ``tabulate`` makes one of three tables."""

    groups: list[tuple[list[Trial], ScoreTask]]
    compute: ComputeParameters
    table: str = "scores"

    def of(self, table: str) -> ScorePlan:
        """The same for another table: scores, pixel_measures or costs."""
        return replace(self, table=table)

    def __add__(self, other: ScorePlan) -> ScorePlan:
        return replace(self, groups=[*self.groups, *other.groups])

    def run(self, memory: Memory) -> pd.DataFrame:
        """Score what the memory lacks; one row per trial and test sample, or one per trial."""
        missing = [replace(task, memory=memory) for _, task in self.groups if not memory.has(task.entry)]
        if missing:
            need = max(score_bytes(task) for task in missing)
            map_tasks(score, missing, "Scoring", self.compute, self.compute.device, len(self.groups), need)
        tabulate = {"scores": tabulate_scores, "pixel_measures": tabulate_pixels, "costs": tabulate_costs}[self.table]
        return tabulate(self.groups, memory)


def plan_scores(
    trials: Sequence[Trial], features: Features, samples: pd.DataFrame, images: ImageLoader, compute: ComputeParameters
) -> ScorePlan:
    """Plan the scores of MPFM: trials that share all fits are scored together, for the union of their test samples."""
    describe = _test_sets(features, samples, images)
    groups = []
    for own in group_by(trials, lambda trial: tuple(trial.fits.items())):
        tests, described = describe(own)
        fits = own[0].fits
        key = key_digest({"fits": [entry.key for entry in fits.values()], "version": SCORING_VERSION} | described)
        groups.append((own, ScoreTask(Entry("scores", key), tests, features, compute.device, fits)))
    return ScorePlan(groups, compute)


def plan_baselines(
    trials: Sequence[Trial],
    steps: int,
    features: Features,
    samples: pd.DataFrame,
    images: ImageLoader,
    compute: ComputeParameters,
) -> ScorePlan:
    """Plan fits and scores of baselines; one that reads no anomaly is shared by runs with other known anomalies."""
    from mpfm_kedro.detectors.registry import baseline  # with torch, which is slow to import

    trials = [trial for trial in trials if trial.run["known_anomalies"] or not baseline(trial.method.name).supervised]
    learned, describe = cache(partial(learned_digest, features=features)), _test_sets(features, samples, images)
    learns: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {}
    for trial in trials:
        detector = baseline(trial.method.name)
        run = trial.run if detector.supervised else trial.run | {"known_anomalies": []}
        fitted = {
            "baseline": detector.name,
            "version": detector.version,
            "steps": steps if "{steps}" in detector.budget else None,
            "seed": run["seed"] if detector.random else None,
            "features": features.spec_digest,
            "data": learned((*run["train_normals"], *run["known_anomalies"]), True),
        }
        learns[trial.run["run"], detector.name] = run, fitted
    groups = []
    for own in group_by(trials, lambda trial: key_digest(learns[trial.run["run"], trial.method.name][1])):
        run, fitted = learns[own[0].run["run"], own[0].method.name]
        tests, described = describe(own)
        entry = Entry(BASELINES, key_digest(fitted | described))
        task = ScoreTask(entry, tests, features, compute.device, {}, str(fitted["baseline"]), steps, run)
        groups.append((own, task))
    return ScorePlan(groups, compute)


def _test_sets(features: Features, samples: pd.DataFrame, images: ImageLoader) -> Any:
    """A function from trials that share a detector to their test set, and what keys say of it."""
    marked, mask_digest = where_marked(samples), cache(lambda name: _file_digest(images.folder / name))

    def describe(trials: list[Trial]) -> tuple[TestSet, dict[str, Any]]:
        names = list(dict.fromkeys(sample for trial in trials for sample in trial.tested))
        own = [marked[name] for name in names]
        masks = sorted({name for one in own if one and one.mask_path for name in one.mask_path.split("|")})
        place = {name: i for i, name in enumerate(names)}
        subsets = list(dict.fromkeys(tuple(place[name] for name in trial.tested) for trial in trials))
        tests = TestSet(names, own if masks else [], images.folder, [list(subset) for subset in subsets])
        return tests, {
            "samples": names,
            "contents": contents(names, features, [ORIGINAL]),
            "pixels": [subsets, [asdict(one) if one else None for one in own]] if masks else None,
            "masks": [mask_digest(name) for name in masks],
            "versions": [data.VERSION, PIXELS_VERSION],
            "libraries": library_versions(),
        }

    return describe


def where_marked(samples: pd.DataFrame) -> dict[str, Marked | None]:
    """Where each sample is defective; None for an anomaly without a mask."""
    marked: dict[str, Marked | None] = {}
    for row in samples[["sample_id", "label", "mask_path", "crop", "width", "height"]].to_dict("records"):
        left, upper, right, lower = parse_crop(row["crop"]) or (0, 0, row["width"], row["height"])
        factor = min(1, LONGEST_SIDE / max(right - left, lower - upper, 1))
        size = max(1, round(factor * (right - left))), max(1, round(factor * (lower - upper)))
        unknown = row["label"] == 1 and not row["mask_path"]
        marked[row["sample_id"]] = None if unknown else Marked(row["mask_path"], row["crop"], size)
    return marked


def score(task: ScoreTask) -> None:
    """Score samples, measure their pixels where there are masks, and keep both; the work of a worker."""
    import torch  # slow to import

    from mpfm_kedro.detectors.base import Artefact

    assert task.memory is not None
    began = time.monotonic()
    device = torch_device(task.device)
    detector = _fitted_baseline(task, device) if task.baseline else _loaded(task, device)
    rows = select(task.features, np.array(task.tests.samples), [ORIGINAL])
    scores = detector.score_samples(rows)
    found = {name: torch.from_numpy(np.asarray(value)) for name, value in vars(scores).items() if value is not None}
    found["score"] = found["score"].double()
    localise = getattr(detector, "position_scores", None)
    maps = localise(rows) if task.tests.marked and localise is not None else None
    if maps is not None:
        pixels = measure_maps(maps, task.tests.marked, task.tests.folder, task.tests.subsets)
        found["pixels"] = torch.from_numpy(pixels)
    task.memory.save(task.entry, Artefact(found), time.monotonic() - began)


def _loaded(task: ScoreTask, device: torch.device) -> MPFMDetector:
    from mpfm_kedro.detectors.mpfm.detector import load

    assert task.memory is not None
    return load({name: task.memory.load(entry) for name, entry in task.fits.items()}, device)


def _fitted_baseline(task: ScoreTask, device: torch.device) -> Detector:
    import torch

    from mpfm_kedro.detectors.base import Context
    from mpfm_kedro.detectors.registry import baseline

    assert task.run is not None
    learned = training_data(task.run, task.features)
    with torch.random.fork_rng(devices=[]):
        return baseline(task.baseline)(task.steps).fit(learned, task.run["seed"], Context(device))


def tabulate_scores(groups: list[tuple[list[Trial], ScoreTask]], memory: Memory) -> pd.DataFrame:
    """One row per trial and test sample; the four scores of MPFM, and its mode."""
    tables = []
    for trials, task in groups:
        place = {sample: i for i, sample in enumerate(task.tests.samples)}
        values = {name: value.numpy() for name, value in memory.load(task.entry).tensors.items()}
        for trial in trials:
            tables.append((trial.order, _score_table(trial, [place[sample] for sample in trial.tested], values)))
    tables.sort(key=lambda pair: pair[0])
    return pd.concat([table for _, table in tables], ignore_index=True) if tables else pd.DataFrame(columns=SCORES)


def _score_table(trial: Trial, rows: list[int], values: dict[str, np.ndarray]) -> pd.DataFrame:
    described = {name: trial.run[name] for name in RUN} | {"method": trial.method.name}
    table = pd.DataFrame(described | {"sample": tested(trial.run)})
    table["label"] = np.repeat([0, 1], [len(trial.run["test_normals"]), len(trial.run["test_anomalies"])])
    table["score"] = values["score"][rows]
    table[PART_COLUMNS] = values["parts"][rows] if "parts" in values else np.nan
    table["mode"] = values["mode"][rows] if "mode" in values else NO_MODE
    return table[SCORES]


def tabulate_pixels(groups: list[tuple[list[Trial], ScoreTask]], memory: Memory) -> pd.DataFrame:
    """Pixel AUROC, AUPRO and best pixel F1 of each trial whose detector localises; no rows where there are no masks."""
    rows = []
    for trials, task in groups:
        pixels = memory.load(task.entry).tensors.get("pixels")
        place = {sample: i for i, sample in enumerate(task.tests.samples)}
        for trial in trials:
            if pixels is None:
                continue
            subset = task.tests.subsets.index([place[sample] for sample in trial.tested])
            rows.append(trial.name | dict(zip(PIXEL_MEASURES, pixels[subset].tolist(), strict=True)))
    return pd.DataFrame(rows, columns=[*TRIAL, *PIXEL_MEASURES]).dropna(subset=PIXEL_MEASURES, ignore_index=True)


def tabulate_costs(groups: list[tuple[list[Trial], ScoreTask]], memory: Memory) -> pd.DataFrame:
    """Seconds of each trial: its fits, and its share of scoring what several trials score together."""
    rows = []
    for trials, task in groups:
        fits = sum(memory.seconds(entry) for entry in task.fits.values())
        for trial in trials:
            share = len(trial.tested) / len(task.tests.samples) if task.fits else 1
            rows.append(trial.name | {"seconds": round(fits + share * memory.seconds(task.entry), 2)})
    return pd.DataFrame(rows, columns=COSTS)


def score_bytes(task: ScoreTask) -> int:
    """Memory that a task takes, about: the process, pooled statistics, position maps, histograms of pixels."""
    n, sizes = len(task.tests.samples), sum(spec.pooled_size for spec in task.features.specs)
    if task.run is not None:
        n += len(task.run["train_normals"])
    positions = int(np.prod(task.features.store.spec.map_shape[1:])) if task.tests.marked else 0
    histograms = len(task.tests.subsets) * PixelCounts().nbytes if task.tests.marked else 0
    return PROCESS_BYTES + POOLED_COPIES * n * 4 * sizes + 4 * positions * n * 4 + histograms


def _file_digest(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()[:24]
    except OSError as error:
        raise InputError(
            f"Cannot read the mask {file}: {error.strerror}; was it there when samples were listed?"
        ) from error
