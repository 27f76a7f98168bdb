"""Predictions of many files: a log that grows while the work goes on, and the table that is made of it.

An interrupted prediction resumes from its log, and another false-alarm rate needs no new prediction. A file that was
changed is predicted again. While the backbone reads some images, a second thread judges those before them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.errors import InputError
from mpfm_kedro.files import replacing
from mpfm_kedro.inspection.finding import as_text
from mpfm_kedro.inspection.inspector import Inspector, Prediction
from mpfm_kedro.inspection.model import model_digest
from mpfm_kedro.inspection.prediction_log import PART_COLUMNS, Logged, PredictionLog
from mpfm_kedro.inspection.preparation import Prepared, prepare
from mpfm_kedro.inspection.thresholds import GOOD, Promise, decide, p_values
from mpfm_kedro.progress import progress

logger = logging.getLogger(__name__)
COLUMNS = ["path", "score", "p_value", "decision", "mode", *PART_COLUMNS, "flagged_by", "box", "area", "error"]
ERROR = "error"
OVERLAY_SIDE = 640


def predict_files(
    inspector: Inspector,
    files: Sequence[Path],
    log: PredictionLog,
    promised: Promise,
    overlays: Path | None = None,
    which: str = "flagged",
    workers: int = 1,
) -> pd.DataFrame:
    """One row per file with the columns ``COLUMNS``, the highest score first; files that cannot be read come last.

    Args:
        inspector: of the model.
        files: to predict.
        log: of what the model has said before.
        promised: the thresholds.
        overlays: the folder of overlays; None for none.
        which: images that get one: flagged, all or none.
        workers: processes that decode.
    """
    paths = [os.path.realpath(file) for file in files]
    known = log.known(set(paths))
    drawing = Drawing(inspector, overlays, promised, "none" if overlays is None else which)
    drawing.delete_those_of_other_models()
    remaining = [path for path in paths if _is_new(path, known) or drawing.is_missing(path, known[path])]
    if remaining:
        logger.info("%d of %d images are to be predicted", len(remaining), len(files))
    with progress("Predicting", len(remaining), "images") as bar:
        for rows in _predicted(inspector, remaining, drawing, workers):
            log.append(rows)
            known.update((row["path"], Logged.of(row)) for row in rows)
            bar.advance(len(rows))
    return tabulate(((path, known[path]) for path in paths), promised, inspector)


def tabulate(rows: Iterable[tuple[str, Logged]], promised: Promise, inspector: Inspector) -> pd.DataFrame:
    """The table of some files and what the log says of them, with decisions by these thresholds."""
    table = pd.DataFrame([(as_text(path), *row) for path, row in rows], columns=["path", *Logged._fields])
    usable = table["error"] == ""
    table["decision"], table["p_value"] = ERROR, float("nan")
    if usable.any():
        scores = table.loc[usable, "score"].astype(float)
        table.loc[usable, "decision"] = decide(scores, promised)
        table.loc[usable, "p_value"] = p_values(scores, inspector.normal_scores)
    table["mode"] = table["mode"].astype("Int64")
    return table[COLUMNS].sort_values(["score", "path"], ascending=[False, True], ignore_index=True)


def overlay_path(folder: Path, card: Mapping[str, Any], file: Path | str) -> Path:
    """Where the overlay of a file is; each model has its own."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(file))).hexdigest()[:20]
    return folder / model_digest(card) / f"{name}.jpg"


@dataclass(frozen=True)
class Drawing:
    """Which images get an overlay, and where.

    Args:
        inspector: of the model.
        folder: of overlays; None where no image gets one.
        promised: the thresholds that decide which images are flagged.
        which: flagged, all or none.
    """

    inspector: Inspector
    folder: Path | None
    promised: Promise
    which: str

    def is_missing(self, path: str, known: Logged) -> bool:
        """Whether an image that was predicted before lacks its overlay."""
        if self.folder is None or known.error:
            return False
        decision = str(decide([known.score], self.promised)[0])
        return self._is_shown(decision) and not overlay_path(self.folder, self.inspector.card, path).is_file()

    def draw(self, path: str, prediction: Prediction) -> None:
        """Write the image with its heat map over it, if it is one of those that get one."""
        if self.folder is None or not self._is_shown(prediction.decision):
            return
        shown = self.inspector.overlay(path, prediction)
        shown.thumbnail((OVERLAY_SIDE, OVERLAY_SIDE))
        with replacing(overlay_path(self.folder, self.inspector.card, path)) as partial:
            shown.save(partial, format="jpeg", quality=88)

    def delete_those_of_other_models(self) -> None:
        """Delete overlays that show what another model has said."""
        if self.folder is not None and self.folder.is_dir():
            for other in self.folder.iterdir():
                if other.name != model_digest(self.inspector.card):
                    shutil.rmtree(other) if other.is_dir() else other.unlink()

    def _is_shown(self, decision: str) -> bool:
        return self.which == "all" or (self.which == "flagged" and decision != GOOD)


@dataclass(frozen=True)
class _Batch:
    """Some files as the backbones read them.

    Args:
        places: of the files among all.
        pixels: of those that can be read, (n, 3, S, S) for each backbone.
        sizes: width and height of these.
        problems: why a file cannot be read, for each; empty where it can.
    """

    places: list[int]
    pixels: tuple[Tensor, ...]
    sizes: list[tuple[int, int]]
    problems: list[str]

    @classmethod
    def of(cls, read: Sequence[tuple[int, Prepared | str]]) -> _Batch:
        """A batch of single files."""
        usable = [own for _, own in read if isinstance(own, Prepared)]
        pixels = tuple(torch.stack(own) for own in zip(*(each.pixels for each in usable), strict=True))
        problems = [own if isinstance(own, str) else "" for _, own in read]
        return cls([place for place, _ in read], pixels, [own.size for own in usable], problems)


@dataclass(frozen=True)
class _Files(Dataset):
    """Files as the backbones read them, or what is wrong with them."""

    paths: Sequence[str]
    sizes: tuple[int, ...]
    pixel_range: str
    max_megapixels: float

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[int, Prepared | str]:
        path = self.paths[i]
        if as_text(path) != path:  # tables and pages are UTF-8
            return i, f"{as_text(path)} cannot be used: its name is no text in UTF-8; rename it"
        try:
            return i, prepare(path, self.sizes, self.pixel_range, self.max_megapixels)
        except InputError as error:
            return i, str(error)


def _predicted(
    inspector: Inspector, paths: Sequence[str], drawing: Drawing, workers: int
) -> Iterator[list[dict[str, Any]]]:
    """The lines of the log of some files at once; their overlays are drawn."""
    dataset = _Files(paths, inspector.sizes, inspector.card["pixel_range"], inspector.max_megapixels)
    workers = min(workers, len(paths) // inspector.batch_size)
    loader: Iterable[_Batch] = DataLoader(
        dataset, inspector.batch_size, num_workers=workers, collate_fn=_Batch.of, prefetch_factor=4 if workers else None
    )
    with ThreadPoolExecutor(1) as second:
        before: Future[list[dict[str, Any]]] | None = None
        for batch in loader:
            rows = inspector.features(batch.pixels) if batch.pixels else None
            judged = second.submit(_judge, inspector, [paths[place] for place in batch.places], batch, rows, drawing)
            if before is not None:
                yield before.result()
            before = judged
        if before is not None:
            yield before.result()


def _judge(
    inspector: Inspector, paths: Sequence[str], batch: _Batch, rows: FeatureRows | None, drawing: Drawing
) -> list[dict[str, Any]]:
    predictions = inspector.judge(rows, batch.sizes, drawing.promised) if rows is not None else []
    likenesses = inspector.explain_many(predictions) if predictions else []
    found = iter(zip(predictions, likenesses, strict=True))
    lines = []
    for path, problem in zip(paths, batch.problems, strict=True):
        line: dict[str, Any] = {"path": path, **_state(path)}
        if problem:
            lines.append(line | {"error": problem})
            continue
        prediction, (normals, anomalies) = next(found)
        drawing.draw(path, prediction)
        near = {"normals": [own.sample_id for own in normals], "anomalies": [own.sample_id for own in anomalies]}
        lines.append(line | _said(prediction) | near)
    return lines


def _said(prediction: Prediction) -> dict[str, Any]:
    """What the log keeps of a prediction."""
    region = prediction.regions[0] if prediction.regions else None
    return {
        "score": prediction.score,
        "mode": prediction.mode,
        **{f"score_{part}": value for part, value in prediction.parts.items()},
        "shares": prediction.shares,
        "flagged_by": prediction.flagged_by,
        "box": ",".join(map(str, region.box)) if region else "",
        "area": sum(own.area for own in prediction.regions),
        "error": "",
    }


def _is_new(path: str, known: Mapping[str, Logged]) -> bool:
    row = known.get(path)
    return row is None or {"size": row.size, "modified": row.modified} != _state(path)


def _state(path: str) -> dict[str, int]:
    """Size and date of a file, by which a change is noticed."""
    try:
        found = Path(path).stat()
    except OSError:
        return {"size": -1, "modified": -1}
    return {"size": found.st_size, "modified": found.st_mtime_ns}
