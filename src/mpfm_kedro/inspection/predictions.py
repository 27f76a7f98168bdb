"""Predictions of many files: a log that grows while the work goes on, and the table that is made of it.

An interrupted prediction resumes from its log, and another false-alarm rate needs no new prediction. A file that was
changed is predicted again. While the backbone reads some images, a second thread judges those before them.
"""

import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from mpfm_kedro.atomic import explain, replacing
from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.columns import PART_COLUMNS
from mpfm_kedro.images.loading import file_state
from mpfm_kedro.inspection.finding import escape_undecodable
from mpfm_kedro.inspection.heat_maps import to_jpeg
from mpfm_kedro.inspection.inspector import Inspector, Prediction
from mpfm_kedro.inspection.model import model_digest
from mpfm_kedro.inspection.preparation import Prepared
from mpfm_kedro.inspection.thresholds import GOOD, Threshold, decide, p_values
from mpfm_kedro.progress import progress

logger = logging.getLogger(__name__)
LOGGED = ["score", "mode", *PART_COLUMNS, "flagged_by", "box", "area", "likeness", "error"]
STATE = ["size", "modified"]
COLUMNS = ["path", "score", "p_value", "decision", *LOGGED[1:]]
ERROR = "error"
TABLE, OVERLAYS = "predictions.csv", "overlays"  # in the folder of a batch
OVERLAY_SIDE = 640


@dataclass(frozen=True)
class PredictionLog:
    """Predictions of one model; a line of JSON for each file, whatever the thresholds are, only ever appended."""

    file: Path

    @classmethod
    def of(cls, folder: Path, card: dict[str, Any]) -> Self:
        """The log of a model among those in a folder."""
        return cls(folder / f"{model_digest(card)}.jsonl")

    def read(self, only: Collection[str], names: Collection[str] = ()) -> dict[str, dict[str, Any]]:
        """The last line of each of these files, by path; of its values all, or those that are named.

        A line that cannot be parsed, such as one that was cut, does not count.
        """
        rows: dict[str, dict[str, Any]] = {}
        if self.file.is_file():
            with self.file.open("rb") as lines:
                for line in lines:
                    row = _parse(line)
                    if row is not None and row["path"] in only:
                        rows[row["path"]] = {name: row.get(name) for name in names} if names else row
        return rows

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add lines, and flush them to the disk."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("ab+") as log:
                if log.tell():
                    log.seek(-1, os.SEEK_END)
                    log.write(b"" if log.read(1) == b"\n" else b"\n")
                log.writelines(f"{json.dumps(row)}\n".encode() for row in rows)
                log.flush()
                os.fsync(log.fileno())
        except OSError as error:
            raise InputError(f"Cannot write {self.file}: {explain(error, self.file.parent)}") from error


def predict_files(
    inspector: Inspector,
    files: Sequence[Path],
    log: PredictionLog,
    threshold: Threshold,
    overlays: Path | None = None,
    which: str = "flagged",
    workers: int = 1,
) -> pd.DataFrame:
    """One row per file with the columns ``COLUMNS``, the highest score first; files that cannot be read come last.

    Links keep their names. The log has earlier predictions by the model; ``workers`` processes decode. A folder of
    overlays gets those of ``which`` images: flagged, all or none.
    """
    paths = [os.path.abspath(file) for file in files]  # noqa: PTH100, Path.resolve would follow links
    known = log.read(set(paths), STATE + LOGGED)
    drawing = Drawing(inspector, overlays, threshold, which)
    remaining = [path for path in paths if _is_new(path, known.get(path)) or drawing.is_missing(path, known[path])]
    if remaining:
        logger.info("%d of %d images are to be predicted", len(remaining), len(files))
    with progress("Predicting", len(remaining), "images") as bar:
        for rows in _predict_batches(inspector, remaining, drawing, workers):
            log.append(rows)
            known.update((row["path"], {name: row.get(name) for name in LOGGED}) for row in rows)
            bar.update(len(rows))
    return _tabulate(paths, known, threshold, inspector)


def _tabulate(
    paths: Sequence[str], known: Mapping[str, Mapping[str, Any]], threshold: Threshold, inspector: Inspector
) -> pd.DataFrame:
    """The table of some files and their lines of the log, with decisions by these thresholds."""
    table = pd.DataFrame([known[path] for path in paths], columns=LOGGED)
    table["path"] = [escape_undecodable(path) for path in paths]
    usable = table["error"] == ""
    table["decision"], table["p_value"] = ERROR, float("nan")
    if usable.any():
        scores = table.loc[usable, "score"].astype(float)
        table.loc[usable, "decision"] = decide(scores, threshold, table.loc[usable, "likeness"].astype(float))
        table.loc[usable, "p_value"] = p_values(scores, inspector.normal_scores)
    table["mode"] = table["mode"].astype("Int64")
    return table[COLUMNS].sort_values(["score", "path"], ascending=[False, True], ignore_index=True)


def overlay_path(folder: Path, card: Mapping[str, Any], file: Path | str) -> Path:
    """Where the overlay of a file is; each model has its own."""
    name = os.fsencode(model_digest(card) + os.path.abspath(file))  # noqa: PTH100, likewise
    return folder / f"{hashlib.sha256(name).hexdigest()[:20]}.jpg"


@dataclass(frozen=True)
class Drawing:
    """Which images get an overlay, and where."""

    inspector: Inspector
    folder: Path | None  # None where no image gets one
    threshold: Threshold  # decides which images are flagged
    which: str  # flagged, all or none

    def is_missing(self, path: str, row: Mapping[str, Any]) -> bool:
        """Whether an image that was predicted before lacks its overlay."""
        if self.folder is None or row["error"]:
            return False
        decision = str(decide([row["score"]], self.threshold, row["likeness"])[0])
        return self._is_shown(decision) and not overlay_path(self.folder, self.inspector.card, path).is_file()

    def draw(self, path: str, prediction: Prediction) -> None:
        """Write the image with its heat map over it, if it is one of those that get one."""
        if self.folder is None or not self._is_shown(prediction.decision):
            return
        content = to_jpeg(self.inspector.overlay(path, prediction), OVERLAY_SIDE)
        with replacing(overlay_path(self.folder, self.inspector.card, path)) as file:
            file.write_bytes(content)

    def _is_shown(self, decision: str) -> bool:
        return self.which == "all" or (self.which == "flagged" and decision != GOOD)


def _read_batch(paths: Sequence[str], prepare: Callable[[str], Prepared]) -> tuple[list[tuple[str, Any]], list[Tensor]]:
    """Each path with the size of its image or its problem, and the pixels (n, 3, S, S) for each backbone."""
    found: list[tuple[str, Any]] = []
    usable: list[tuple[Tensor, ...]] = []
    for path in paths:
        try:
            if escape_undecodable(path) != path:  # tables and pages are UTF-8
                raise InputError(f"{escape_undecodable(path)} cannot be used: its name is not UTF-8; rename it")
            image = prepare(path)
        except InputError as error:
            found.append((path, str(error)))
            continue
        found.append((path, image.size))
        usable.append(image.pixels)
    return found, [torch.stack(tensors) for tensors in zip(*usable, strict=True)]


def _predict_batches(
    inspector: Inspector, paths: Sequence[str], drawing: Drawing, workers: int
) -> Iterator[list[dict[str, Any]]]:
    """The lines of the log, batch by batch; overlays are drawn."""
    read = partial(_read_batch, prepare=inspector.prepare)
    workers = min(workers, len(paths) // inspector.batch_size)
    options: Any = {"num_workers": workers, "collate_fn": read, "prefetch_factor": 4 if workers else None}
    with ThreadPoolExecutor(1) as second:
        judged: deque[Future[list[dict[str, Any]]]] = deque()
        for batch, pixels in DataLoader(list(paths), inspector.batch_size, **options):  # type: ignore[arg-type]
            rows = inspector.features(pixels) if pixels else None
            judged.append(second.submit(_judge, inspector, batch, rows, drawing))
            if len(judged) > 1:
                yield judged.popleft().result()
        yield from (last.result() for last in judged)


def _judge(
    inspector: Inspector, batch: Sequence[tuple[str, Any]], rows: FeatureRows | None, drawing: Drawing
) -> list[dict[str, Any]]:
    sizes = [size for _, size in batch if not isinstance(size, str)]
    predictions = iter(inspector.judge(rows, sizes, drawing.threshold) if rows is not None else [])
    lines = []
    for path, size_or_problem in batch:
        line: dict[str, Any] = {"path": path, **dict(zip(STATE, file_state(Path(path)), strict=True))}
        if isinstance(size_or_problem, str):
            lines.append(line | {"error": size_or_problem})
            continue
        prediction = next(predictions)
        drawing.draw(path, prediction)
        neighbours = zip(("normals", "anomalies"), inspector.explain(prediction), strict=True)
        names = {kind: [neighbour.sample_id for neighbour in found] for kind, found in neighbours}
        lines.append(line | _log_record(prediction) | names)
    return lines


def _log_record(prediction: Prediction) -> dict[str, Any]:
    region = prediction.regions[0] if prediction.regions else None
    return {
        "score": prediction.score,
        "mode": prediction.mode,
        **{f"score_{part}": value for part, value in prediction.parts.items()},
        "shares": prediction.shares,
        "flagged_by": prediction.flagged_by,
        "box": ",".join(map(str, region.box)) if region else "",
        "area": sum(found.area for found in prediction.regions),
        "likeness": prediction.likeness,
        "error": "",
    }


def _is_new(path: str, row: Mapping[str, Any] | None) -> bool:
    return row is None or (row["size"], row["modified"]) != file_state(Path(path))


def _parse(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None for one that was cut or damaged."""
    try:
        row = json.loads(line)
        whole = isinstance(row["path"], str) and isinstance(row["error"], str) and {*STATE} <= row.keys()
        return row if whole and (row["error"] or isinstance(row["score"], float)) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
