"""Where the defect is: pixel measures of every trial, wherever there are masks.

Maps of all trials would fill the disk, so the measures are made while the detector is loaded, and cached by all that
decides them: the pieces, the test samples and their masks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache as remember
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.cache import ArtefactFile, Cache, cache_key
from mpfm_kedro.experiments.columns import PIXEL_MEASURES, TRIAL
from mpfm_kedro.experiments.contents import contents
from mpfm_kedro.experiments.pixel_measures import Marked, PixelCounts, measure_maps
from mpfm_kedro.experiments.trials import DATA_VERSION, PROCESS_BYTES, Trial, pieces_of, sharing_pieces, tested
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.views import ORIGINAL
from mpfm_kedro.parallel import map_tasks, torch_device
from mpfm_kedro.parameters import ComputeParameters
from mpfm_kedro.provenance import library_versions
from mpfm_kedro.sources.samples import parse_crop

if TYPE_CHECKING:  # with torch, which is slow to import
    from mpfm_kedro.backbones.rows import FeatureRows

VERSION = 1  # of the measures of pixels, raised when a change of the code changes them
LONGEST_SIDE = 1024  # pixels of larger images are counted in this size
COLUMNS = [*TRIAL, *PIXEL_MEASURES]


@runtime_checkable
class Localiser(Protocol):
    """A fitted detector that says how unusual each position of an image is."""

    def position_scores(self, rows: FeatureRows) -> np.ndarray | None:
        """Values of the positions of n images, (n, H', W'), higher where something is unusual; None without them."""


@dataclass(frozen=True)
class PixelTask:
    """Test samples of trials that share a detector, where they are defective, and where the measures are stored."""

    load: str
    pieces: dict[str, ArtefactFile]
    features: Features
    samples: list[str]
    marked: list[Marked | None]
    folder: Path
    subsets: list[list[int]]
    entry: ArtefactFile
    device: str


def measure_localisation(
    trials: list[Trial],
    samples: pd.DataFrame,
    images: ImageLoader,
    features: Features,
    models: dict[str, ArtefactFile],
    cache: Cache,
    device: str,
    compute: ComputeParameters,
) -> pd.DataFrame:
    """Pixel AUROC, AUPRO and best pixel F1 of each trial whose detector localises; no rows where there are no masks."""
    marked = where_marked(samples)
    known = {name for name, own in marked.items() if own is not None and own.mask_path}
    trials = [trial for trial in trials if not known.isdisjoint(trial.run["test_anomalies"])]
    groups = sharing_pieces(trials, models)
    digest, mask_digest = remember(ArtefactFile.digest), remember(lambda name: _file_digest(images.folder / name))
    tasks = [_task(own, marked, images.folder, features, models, cache, device, digest, mask_digest) for own in groups]
    remaining = [task for task in tasks if not task.entry.is_cached()]
    if remaining:
        map_tasks(measure_task, remaining, "Pixel measures", compute, device, len(tasks), _task_bytes(remaining))
    rows = []
    for own, task in zip(groups, tasks, strict=True):
        found = task.entry.load().tensors["pixels"].numpy()
        for trial, subset in zip(own, _subsets(own, task.samples), strict=True):
            described = {"setting": trial.run["setting"], "run": trial.run["run"], "method": trial.specification.name}
            measures = dict(zip(PIXEL_MEASURES, found[task.subsets.index(subset)].tolist(), strict=True))
            rows.append(described | measures)
    return pd.DataFrame(rows, columns=COLUMNS).dropna(subset=PIXEL_MEASURES, ignore_index=True)


def where_marked(samples: pd.DataFrame) -> dict[str, Marked | None]:
    """Where each sample is defective; None for an anomaly without a mask."""
    found: dict[str, Marked | None] = {}
    for row in samples[["sample_id", "label", "mask_path", "crop", "width", "height"]].to_dict("records"):
        left, upper, right, lower = parse_crop(row["crop"]) or (0, 0, row["width"], row["height"])
        factor = min(1, LONGEST_SIDE / max(right - left, lower - upper, 1))
        size = max(1, round(factor * (right - left))), max(1, round(factor * (lower - upper)))
        unknown = row["label"] == 1 and not row["mask_path"]
        found[row["sample_id"]] = None if unknown else Marked(row["mask_path"], row["crop"], size)
    return found


def measure_task(task: PixelTask) -> None:
    """Measure one detector on each of the subsets and store the result; the work of a worker."""
    import torch  # slow to import

    from mpfm_kedro.detectors.base import Artefact
    from mpfm_kedro.experiments.run_data import select

    pieces = {name: file.load() for name, file in task.pieces.items()}
    detector = resolve_name(task.load)(pieces, torch_device(task.device))
    maps = None
    if isinstance(detector, Localiser):
        maps = detector.position_scores(select(task.features, np.array(task.samples), [ORIGINAL]))
    if maps is None:
        found = np.full((len(task.subsets), len(PIXEL_MEASURES)), np.nan)
    else:
        found = measure_maps(maps, task.marked, task.folder, task.subsets)
    task.entry.save(Artefact({"pixels": torch.from_numpy(found)}))


def _task(
    trials: list[Trial],
    marked: dict[str, Marked | None],
    folder: Path,
    features: Features,
    models: dict[str, ArtefactFile],
    cache: Cache,
    device: str,
    digest: Callable[[ArtefactFile], str],
    mask_digest: Callable[[str], str],
) -> PixelTask:
    specification, pieces = trials[0].specification, pieces_of(trials[0], models)
    samples = list(dict.fromkeys(sample for trial in trials for sample in tested(trial.run)))
    subsets = [list(subset) for subset in dict.fromkeys(map(tuple, _subsets(trials, samples)))]
    own = [marked[sample] for sample in samples]
    masks = sorted({name for one in own if one and one.mask_path for name in one.mask_path.split("|")})
    key = cache_key(
        pieces=[digest(file) for file in pieces.values()],
        versions=[specification.load, specification.version, VERSION, DATA_VERSION],
        libraries=library_versions(),
        features=features.spec_digest,
        samples=samples,
        contents=contents(samples, features, [ORIGINAL]),
        subsets=subsets,
        marked=[asdict(one) if one else None for one in own],
        masks=[mask_digest(name) for name in masks],
    )
    entry = cache.entry("pixels", key)
    return PixelTask(specification.load, pieces, features, samples, own, folder, subsets, entry, device)


def _subsets(trials: list[Trial], samples: list[str]) -> list[list[int]]:
    """The positions of each trial's own test samples."""
    place = {sample: i for i, sample in enumerate(samples)}
    return [[place[sample] for sample in tested(trial.run)] for trial in trials]


def _task_bytes(tasks: list[PixelTask]) -> int:
    """Memory that a task takes, about: the process, position maps, histograms."""
    positions = int(np.prod(tasks[0].features.store.spec.map_shape[1:]))
    histograms = max(len(task.subsets) for task in tasks) * PixelCounts().nbytes
    return PROCESS_BYTES + 4 * positions * max(len(task.samples) for task in tasks) * 4 + histograms


def _file_digest(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()[:24]
    except OSError as error:
        raise InputError(
            f"Cannot read the mask {file}: {error.strerror}; was it there when samples were listed?"
        ) from error
