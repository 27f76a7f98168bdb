"""Predictions of many files: a log that grows while the work goes on, and the table that is made of it.

The log has one line for each file with what does not depend on a threshold. An interrupted prediction goes on where it
stopped, and another false-alarm rate needs no new prediction. A file that was changed is predicted again.
"""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch.utils.data import DataLoader, Dataset

from mpfm_kedro.detectors.mpfm.calibration import PARTS
from mpfm_kedro.errors import InputError
from mpfm_kedro.files import explain, replacing
from mpfm_kedro.inspection.inspector import Inspector, Prediction, Prepared, prepare
from mpfm_kedro.inspection.model import model_digest
from mpfm_kedro.inspection.thresholds import GOOD, Promise, decide, p_values
from mpfm_kedro.progress import progress
from mpfm_kedro.sources.layout import IMAGE_SUFFIXES

logger = logging.getLogger(__name__)
PART_COLUMNS = [f"score_{part}" for part in PARTS]
COLUMNS = ["path", "score", "p_value", "decision", "mode", *PART_COLUMNS, "flagged_by", "box", "area", "error"]
ERROR = "error"
OVERLAY_SIDE = 640


def find_images(images: str) -> list[Path]:
    """The image files that a file, a folder (with all folders in it) or a glob pattern names, sorted."""
    path = Path(images)
    if path.is_dir():
        found = [Path(folder) / name for folder, _, names in os.walk(path) for name in names if is_image(name)]
    elif path.is_file():
        return [path]
    else:
        matches = (Path(name) for name in glob.iglob(images, recursive=True))  # noqa: PTH207, patterns may be absolute
        found = [match for match in matches if match.is_file() and is_image(match.name)]
    if not found:
        suffixes = " ".join(sorted(IMAGE_SUFFIXES))
        kind = "has no image" if path.is_dir() else "is no file or folder, and no pattern that matches an image"
        raise InputError(f"Parameter 'images' = '{images}' {kind}; images end in {suffixes}")
    return sorted(found)


def is_image(name: str) -> bool:
    """Whether a file is an image, by its name."""
    return Path(name).suffix.lower() in IMAGE_SUFFIXES and not name.startswith(".")


def as_text(name: str) -> str:
    """A file name with all bytes that are no text written out, such as an escape of Python."""
    return name.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class PredictionLog:
    """What one model said of files: a line of JSON for each, only ever appended."""

    file: Path

    @classmethod
    def of(cls, folder: Path, card: dict[str, Any]) -> PredictionLog:
        """The log of a model among those in a folder."""
        return cls(folder / f"{model_digest(card)}.jsonl")

    def read(self, only: Collection[str] | None = None) -> dict[str, dict[str, Any]]:
        """The last line of each file, or of some files alone, by path; a cut or damaged line does not count."""
        found = {}
        if self.file.is_file():
            with self.file.open("rb") as lines:
                for line in lines:
                    row = _parse(line)
                    if row is not None and (only is None or row["path"] in only):
                        found[row["path"]] = row
        return found

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add lines, and see that they are on the disk."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as log:
                if log.tell() and not _ends_a_line(self.file):
                    log.write("\n")
                log.writelines(_format(row) for row in rows)
                log.flush()
                os.fsync(log.fileno())
        except OSError as error:
            raise InputError(f"Cannot write {self.file}: {explain(error, self.file.parent)}") from error


def _format(row: dict[str, Any]) -> str:
    """A line of the log: JSON, a tab, and its checksum."""
    content = json.dumps(row)
    return f"{content}\t{zlib.crc32(content.encode()):08x}\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None for one that was cut or damaged. Older lines have no checksum."""
    content, _, checksum = line.rstrip(b"\n").partition(b"\t")
    try:
        row = json.loads(content)
        whole = not checksum or int(checksum, 16) == zlib.crc32(content)
        return row if whole and isinstance(row["path"], str) and {"size", "modified", "error"} <= row.keys() else None
    except (ValueError, KeyError, TypeError):
        return None


def predict_files(
    inspector: Inspector,
    files: Sequence[Path],
    log: PredictionLog,
    promised: Promise,
    overlays: Path,
    which: str = "flagged",
    workers: int = 1,
) -> pd.DataFrame:
    """One row per file with the columns ``COLUMNS``, the highest score first; files that cannot be read come last.

    Args:
        inspector: of the model.
        files: to predict.
        log: of what the model has said before.
        promised: the thresholds.
        overlays: the folder of overlays.
        which: images that get one: flagged, all or none.
        workers: processes that decode.
    """
    known = log.read()
    remaining = [
        file for file in files if _is_new(file, known) or _lacks_overlay(file, known, promised, overlays, which)
    ]
    if remaining:
        logger.info("%d of %d images are to be predicted", len(remaining), len(files))
    with progress("Predicting", len(remaining), "images") as bar:
        for part, predictions in _predicted(inspector, remaining, promised, workers):
            rows = [_row(inspector, file, found) for file, found in zip(part, predictions, strict=True)]
            for file, found in zip(part, predictions, strict=True):
                if isinstance(found, Prediction) and _is_shown(found.decision, which):
                    save_overlay(inspector, file, found, overlay_path(overlays, file))
            log.append(rows)
            known.update({row["path"]: row for row in rows})
            bar.advance(len(part))
    return tabulate([known[str(file.resolve())] for file in files], promised, inspector)


def tabulate(rows: Sequence[dict[str, Any]], promised: Promise, inspector: Inspector) -> pd.DataFrame:
    """The table of some lines of the log, with decisions by these thresholds."""
    rows = [row | {"path": as_text(row["path"])} for row in rows]
    table = pd.DataFrame(rows, columns=["path", "score", "mode", *PART_COLUMNS, "flagged_by", "box", "area", "error"])
    usable = table["error"] == ""
    table["decision"], table["p_value"] = ERROR, float("nan")
    if usable.any():
        scores = table.loc[usable, "score"].astype(float)
        table.loc[usable, "decision"] = decide(scores, promised)
        table.loc[usable, "p_value"] = p_values(scores, inspector.normal_scores)
    table["mode"] = table["mode"].astype("Int64")
    return table[COLUMNS].sort_values(["score", "path"], ascending=[False, True], ignore_index=True)


def overlay_path(folder: Path, file: Path | str) -> Path:
    """Where the overlay of a file is."""
    name = hashlib.sha256(os.fsencode(Path(file).resolve())).hexdigest()[:20]
    return folder / f"{name}.jpg"


def save_overlay(inspector: Inspector, file: Path, prediction: Prediction, target: Path) -> None:
    """Write the image with its heat map over it."""
    shown = inspector.overlay(file, prediction)
    shown.thumbnail((OVERLAY_SIDE, OVERLAY_SIDE))
    with replacing(target) as partial:
        shown.save(partial, format="jpeg", quality=88)


@dataclass(frozen=True)
class _Files(Dataset):
    """Files as the backbones read them, or what is wrong with them."""

    files: Sequence[Path]
    sizes: tuple[int, ...]
    pixel_range: str

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> Prepared | str:
        name = str(self.files[i])
        if as_text(name) != name:  # tables and pages are UTF-8
            return f"{as_text(name)} cannot be used: its name is no text in UTF-8; rename it"
        try:
            return prepare(self.files[i], self.sizes, self.pixel_range)
        except InputError as error:
            return str(error)


def _predicted(
    inspector: Inspector, files: Sequence[Path], promised: Promise, workers: int
) -> Iterator[tuple[list[Path], list[Prediction | str]]]:
    """Some files at once, and what is predicted of each, or why it cannot be read."""
    dataset = _Files(files, inspector.sizes, inspector.card["pixel_range"])
    workers = min(workers, len(files) // inspector.batch_size)
    loader: Iterable[list[Prepared | str]] = DataLoader(
        dataset, inspector.batch_size, num_workers=workers, collate_fn=list, prefetch_factor=4 if workers else None
    )
    start = 0
    for batch in loader:
        usable = [own for own in batch if isinstance(own, Prepared)]
        predictions = iter(inspector.predict_prepared(usable, promised) if usable else [])
        found = [own if isinstance(own, str) else next(predictions) for own in batch]
        yield list(files[start : start + len(batch)]), found
        start += len(batch)


def _row(inspector: Inspector, file: Path, found: Prediction | str) -> dict[str, Any]:
    """The line of a file in the log."""
    row: dict[str, Any] = {"path": str(file.resolve()), **_state(file)}
    if isinstance(found, str):
        return row | {"error": found}
    normals, anomalies = inspector.explain(found)
    region = found.regions[0] if found.regions else None
    return row | {
        "score": found.score,
        "mode": found.mode,
        **{f"score_{part}": value for part, value in found.parts.items()},
        "shares": found.shares,
        "flagged_by": found.flagged_by,
        "box": ",".join(map(str, region.box)) if region else "",
        "area": sum(own.area for own in found.regions),
        "normals": [own.sample_id for own in normals],
        "anomalies": [own.sample_id for own in anomalies],
        "error": "",
    }


def _is_new(file: Path, known: dict[str, dict[str, Any]]) -> bool:
    row = known.get(str(file.resolve()))
    return row is None or any(row[name] != value for name, value in _state(file).items())


def _lacks_overlay(file: Path, known: dict[str, dict[str, Any]], promised: Promise, overlays: Path, which: str) -> bool:
    row = known[str(file.resolve())]
    if row["error"] or overlay_path(overlays, file).is_file():
        return False
    return _is_shown(str(decide([row["score"]], promised)[0]), which)


def _is_shown(decision: str, which: str) -> bool:
    return which == "all" or (which == "flagged" and decision != GOOD)


def _state(file: Path) -> dict[str, int]:
    """Size and date of a file, by which a change is noticed."""
    try:
        found = file.stat()
    except OSError:
        return {"size": -1, "modified": -1}
    return {"size": found.st_size, "modified": found.st_mtime_ns}


def _ends_a_line(file: Path) -> bool:
    with file.open("rb") as content:
        content.seek(-1, os.SEEK_END)
        return content.read(1) == b"\n"
