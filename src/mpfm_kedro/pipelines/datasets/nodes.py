"""Which datasets were found, where each is expected, and where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources import SOURCES, synthetic
from mpfm_kedro.sources.source import Counts, Source, compare_counts

COLUMNS = ["dataset", "title", "status", "folder", "normals", "normals_expected", "anomalies", "anomalies_expected"]
COLUMNS += ["licence", "obtain", "problem"]


def list_datasets(data_root: str) -> pd.DataFrame:
    """One row per source, from the names of its files alone.

    Status: found; other counts than published; unusable (something is there, and an error says what); missing. An
    error of a source becomes the text of its row.
    """
    rows = [describe(source, Path(data_root)) for source in SOURCES.values()]
    numbers = dict.fromkeys([name for name in COLUMNS if "normals" in name or "anomalies" in name], "Int64")
    return pd.DataFrame(rows, columns=COLUMNS).astype(numbers)


def describe(source: Source, root: Path) -> dict[str, Any]:
    """What was found of one source."""
    folder = root / source.name
    row: dict[str, Any] = {"dataset": source.name, "title": source.title, "folder": str(folder), "problem": ""}
    row |= {"licence": source.licence, "obtain": source.obtain}
    row |= expected_numbers(list((source.counts or {}).values()))
    if source is synthetic.SOURCE and not folder.is_dir():  # to locate them would draw them
        return row | {"status": "missing", "problem": "Drawn when they are first used."}
    try:
        folder = source.locate(root)
        return row | {"folder": str(folder)} | compare(source, source.list_samples(folder))
    except (InputError, OSError) as error:
        status = "unusable" if folder.exists() else "missing"
        return row | {"folder": str(folder), "status": status, "problem": str(error)}


def compare(source: Source, samples: pd.DataFrame) -> dict[str, Any]:
    """Numbers of the listed samples against the published ones of the categories that are there."""
    anomalies = int(samples["label"].sum())
    found: dict[str, Any] = {"status": "found", "normals": len(samples) - anomalies, "anomalies": anomalies}
    if source.counts is None:
        return found
    parts = {str(category): part for category, part in samples.groupby("category")}
    problems = [
        f"{category} {problem}".strip()
        for category, part in parts.items()
        for problem in compare_counts(part, source.counts[category])
    ]
    if problems:
        found["status"] = "other counts"
    if absent := sorted(set(source.counts) - set(parts)):
        problems.append(f"not here: {', '.join(absent)}")
    return found | expected_numbers([source.counts[name] for name in parts]) | {"problem": "; ".join(problems)}


def expected_numbers(counts: Sequence[Counts]) -> dict[str, int]:
    """Published numbers of several categories together; none for a source without any."""
    if not counts:
        return {}
    anomalies = [n.anomalies if isinstance(n.anomalies, int) else sum(n.anomalies.values()) for n in counts]
    return {"normals_expected": sum(n.train + n.test for n in counts), "anomalies_expected": sum(anomalies)}


HEADINGS = {
    "found": "Ready to use, with kedro run --params=dataset=<name>:",
    "other counts": "Ready to use, but with other numbers of images than published:",
    "unusable": "Found, but not usable as it is:",
    "missing": "Not here:",
}
OWN = (
    "Your own images: kedro run --pipelines=general_setting --params=dataset=folder,data_root=<folder>, where <folder> "
    "holds good/ and one folder for each kind of defect (docs/own_images.md)."
)


def write_datasets(datasets: pd.DataFrame) -> str:
    """What is there and what is not, in sentences for the terminal."""
    parts = []
    for status, heading in HEADINGS.items():
        own = datasets[datasets["status"] == status]
        if status == "missing":  # the last sentence is on own images
            own = own[own["dataset"] != "folder"]
        if len(own):
            parts += [heading, *(f"  {_sentence(row)}" for row in own.to_dict("records")), ""]
    return "\n".join([*parts, OWN])


def _sentence(row: dict[Any, Any]) -> str:
    """One dataset: how many images, where it is or should be, where it comes from, its licence."""
    if row["status"] == "missing":
        counts = _counts(row, "normals_expected", "anomalies_expected")
        about = ", ".join(filter(None, [counts, f"licence: {row['licence']}"]))
        return f"{row['dataset']} ({about}). {row['problem']}"
    about = ", ".join(filter(None, [row["title"], _counts(row, "normals", "anomalies")]))
    problem = f" {row['problem'][:1].upper()}{row['problem'][1:]}." if row["problem"] else ""
    return f"{row['dataset']}: {about}, in {row['folder']}.{problem} From {row['obtain']}; licence: {row['licence']}."


def _counts(row: dict[Any, Any], normals: str, anomalies: str) -> str:
    """Both numbers in words; a CSV file gives a missing one back as an empty text."""
    numbers = [row[normals], row[anomalies]]
    if any(pd.isna(number) or number == "" for number in numbers):
        return ""
    first, second = (f"{int(float(number)):,}" for number in numbers)
    return f"{first} normal and {second} anomalous images"
