"""The collection: images that a production model was taught after its dataset, such as a missed defect."""

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.inspection.model import file_digest
from mpfm_kedro.sources.samples import CHECKED, sample, sample_table

logger = logging.getLogger(__name__)
COLUMNS = ["file", "label", "content_hash", "origin", "added"]
CLASS = "learned"  # defect class of anomalies in the collection
LABELS = {"normal": 0, "anomaly": 1}
LEARNING = "learning"  # folder of images that were marked in the app, while they are learned
MARKED = re.compile(rf"/to_learn/{LEARNING}/[a-z]+/[0-9a-f]{{24}}-([^/]+)$")


@dataclass(frozen=True)
class Collection:
    """Images with their labels."""

    folder: Path  # where their files are
    table: pd.DataFrame  # file, label (0 normal, 1 anomaly), content_hash, origin (the name it had), added (when)
    new: Mapping[str, bytes] = field(default_factory=dict)  # content of files that are not in the folder yet, by name

    def add(self, files: Sequence[Path], label: str, samples: pd.DataFrame) -> "Collection":
        """With more readable images, anomaly or normal; those known under the same label are skipped.

        An image that the samples of the model or the collection know under the other label is refused. The origin of
        one that was marked in the app is its name there.
        """
        number, other = LABELS[label], next(name for name in LABELS if name != label)
        both = pd.concat([samples[["content_hash", "label"]], self.table[["content_hash", "label"]]])
        known: dict[str, int] = dict(both.itertuples(index=False))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        rows, new = [], {}
        for file in files:
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            marked = MARKED.search(file.as_posix())
            origin = marked[1] if marked else str(file)
            if known.get(digest, number) != number:
                raise InputError(f"{origin} is already known, as {other}; it cannot be learned as {label}, too")
            if digest in known:
                logger.warning("%s is already known as %s", origin, label)
                continue
            known[digest] = number
            name = f"{digest[:20]}{file.suffix.lower()}"
            new[name] = content
            rows.append((name, number, digest, origin, now))
        if not rows:
            raise InputError(f"Nothing to learn: all {len(files)} images are already known as {label}")
        table = pd.DataFrame(self.table.to_dict("records") + [dict(zip(COLUMNS, row, strict=True)) for row in rows])
        return Collection(self.folder, table[COLUMNS], {**self.new, **new})

    def with_rows(self, rows: Sequence[Mapping[str, object]]) -> "Collection":
        """The same folder with the images that an earlier model had learned; other files stay and are not used."""
        return Collection(self.folder, pd.DataFrame(rows, columns=COLUMNS))

    def samples(self, dataset: str, category: str, images: ImageLoader) -> pd.DataFrame:
        """The collection as rows of a sample table, checked as ingestion checks images."""
        rows = []
        for file, label in zip(self.table["file"], self.table["label"], strict=True):
            if Path(file).name != file:
                raise InputError(f"The collection {self.folder} names {file!r}, which is outside of it")
            row = sample(dataset, str(self.folder / file), label, CLASS if label else "", category=category)
            name = f"collection/{file}"
            rows.append(row | {"sample_id": name, "item": name, "split": "anomaly" if label else "train"})
        table = sample_table(rows)
        checked = images.examine_all(table["path"].tolist(), processes=1).reset_index(drop=True)
        hashes = dict(zip(self.table["file"], self.table["content_hash"], strict=True))
        for path, problem in zip(table["path"], checked["problem"], strict=True):
            if problem or file_digest(Path(path)) != hashes[Path(path).name]:  # a file that decays keeps its date
                problem = problem or "checksum mismatch; restore it, or a version with kedro versions use"
                raise InputError(f"{path} of the collection cannot be used: {problem}")
        return pd.concat([table, checked[CHECKED]], axis=1)
