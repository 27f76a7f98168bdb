"""The collection: images that a production model was taught after its dataset, such as a defect that was missed."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.sources.samples import CHECKED, sample, sample_table

logger = logging.getLogger(__name__)
COLUMNS = ["file", "label", "content_hash", "origin", "added"]
CLASS = "learned"  # defect class of anomalies in the collection
LABELS = {"normal": 0, "anomaly": 1}


@dataclass(frozen=True)
class Collection:
    """Images with their labels.

    Args:
        folder: where their files are.
        table: file, label (0 normal, 1 anomaly), content_hash, origin (the name it had) and added (when) of each.
        new: content of files that are not in the folder yet, by name.
    """

    folder: Path
    table: pd.DataFrame
    new: Mapping[str, bytes] = field(default_factory=dict)

    def add(self, files: Sequence[Path], label: str, samples: pd.DataFrame) -> Collection:
        """With more images; those that are known under the same label are skipped.

        Args:
            files: the images.
            label: anomaly or normal.
            samples: the dataset that the model has learned from.

        Raises:
            InputError: An image is known under another label.
        """
        known = dict(zip(samples["content_hash"], samples["label"], strict=True))
        known |= dict(zip(self.table["content_hash"], self.table["label"], strict=True))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        rows, new = [], {}
        for file in files:
            try:
                content = file.read_bytes()
            except OSError as error:
                raise InputError(f"{file} cannot be read: {error.strerror}") from error
            digest = hashlib.sha256(content).hexdigest()
            if known.get(digest, LABELS[label]) != LABELS[label]:
                other = next(name for name, number in LABELS.items() if number != LABELS[label])
                raise InputError(f"{file} is already known, as {other}; it cannot be learned as {label}, too")
            if digest in known:
                logger.warning("%s is already known as %s", file, label)
                continue
            known[digest] = LABELS[label]
            name = f"{digest[:20]}{file.suffix.lower()}"
            new[name] = content
            rows.append(dict(zip(COLUMNS, (name, LABELS[label], digest, str(file), now), strict=True)))
        if not rows:
            raise InputError(f"Nothing to learn: all {len(files)} images are already known as {label}")
        table = (
            pd.concat([self.table, pd.DataFrame(rows)], ignore_index=True) if len(self.table) else pd.DataFrame(rows)
        )
        return Collection(self.folder, table[COLUMNS], {**self.new, **new})

    def with_rows(self, rows: Sequence[Mapping[str, object]]) -> Collection:
        """The same folder with the images that an earlier model had learned; other files stay and are not used."""
        return Collection(self.folder, pd.DataFrame(rows, columns=COLUMNS))

    def samples(self, dataset: str, category: str, images: ImageLoader) -> pd.DataFrame:
        """The collection as rows of a sample table, checked as ingestion checks images."""
        for file in self.table["file"]:
            if Path(file).name != file:
                raise InputError(f"The collection {self.folder} names {file!r}, which is outside of it")
        rows = [
            sample(dataset, str(self.folder / file), label, CLASS if label else "", category=category)
            | {
                "sample_id": f"collection/{file}",
                "group": f"collection/{file}",
                "split": "anomaly" if label else "train",
            }
            for file, label in zip(self.table["file"], self.table["label"], strict=True)
        ]
        table = sample_table(rows)
        checked = images.examine_all(table["path"].tolist(), processes=1).reset_index(drop=True)
        for path, problem in zip(table["path"], checked["problem"], strict=True):
            if problem:
                raise InputError(f"{path} of the collection cannot be used: {problem}")
        return pd.concat([table, checked[CHECKED]], axis=1)
