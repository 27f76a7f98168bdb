"""Which datasets are there, where each is looked for, and where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.pipelines.ingestion.nodes import compare_counts
from mpfm_kedro.sources import SOURCES, made
from mpfm_kedro.sources.source import Counts, Source

COLUMNS = ["dataset", "title", "status", "folder", "normals", "normals_expected", "anomalies", "anomalies_expected"]
COLUMNS += ["licence", "obtain", "problem"]


def list_datasets(data_root: str) -> pd.DataFrame:
    """One row a source, from the names of its files alone.

    Status: found; other counts than published; unusable (something is there, and an error says what); missing. An
    error of a source becomes the text of its row.
    """
    rows = [describe(source, Path(data_root)) for source in SOURCES.values()]
    numbers = dict.fromkeys([name for name in COLUMNS if "normals" in name or "anomalies" in name], "Int64")
    return pd.DataFrame(rows, columns=COLUMNS).astype(numbers)


def describe(source: Source, root: Path) -> dict[str, Any]:
    """What is there of one source."""
    own = root / source.name
    row: dict[str, Any] = {"dataset": source.name, "title": source.title, "folder": str(own), "problem": ""}
    row |= {"licence": source.licence, "obtain": source.obtain}
    if source is made.SOURCE and not own.is_dir():  # to locate them is to draw them
        return row | expected_numbers(list((source.counts or {}).values())) | {"status": "missing"}
    try:
        folder = source.locate(root)
        row["folder"] = str(folder)
        samples = source.list_samples(folder)
        return row | compare(source, samples)
    except (InputError, OSError) as error:
        published = expected_numbers(list((source.counts or {}).values()))
        return row | published | {"status": "unusable" if Path(row["folder"]).exists() else "missing"} | {
            "problem": str(error)
        }


def compare(source: Source, samples: pd.DataFrame) -> dict[str, Any]:
    """Numbers of the listed samples against the published ones of the categories that are there."""
    result: dict[str, Any] = {
        "status": "found",
        "normals": int((samples["label"] == 0).sum()),
        "anomalies": int((samples["label"] == 1).sum()),
    }
    if source.counts is None:
        return result
    parts = {str(category): part for category, part in samples.groupby("category")}
    problems = [
        f"{category} {problem}".strip()
        for category, part in parts.items()
        for problem in compare_counts(part, source.counts[category])
    ]
    result |= expected_numbers([source.counts[category] for category in parts])
    if absent := sorted(set(source.counts) - set(parts)):
        problems.append(f"no images of {', '.join(absent)}" if any(absent) else "no images")
    return result | ({"status": "other counts", "problem": "; ".join(problems)} if problems else {})


def expected_numbers(counts: Sequence[Counts]) -> dict[str, int]:
    """Published numbers of several categories together; none for a source without any."""
    if not counts:
        return {}
    anomalies = [n.anomalies if isinstance(n.anomalies, int) else sum(n.anomalies.values()) for n in counts]
    return {"normals_expected": sum(n.train + n.test for n in counts), "anomalies_expected": sum(anomalies)}


def write_datasets(datasets: pd.DataFrame) -> str:
    """The table for the terminal: one line a source, and below what is to be done about it."""
    shown = pd.DataFrame(
        {
            "dataset": datasets["dataset"],
            "status": datasets["status"],
            "normals": _of(datasets, "normals"),
            "anomalies": _of(datasets, "anomalies"),
            "licence": datasets["licence"],
            "looked in": datasets["folder"],
        }
    )
    parts = [shown.to_string(index=False)]
    for row in datasets.to_dict("records"):
        parts.append(f"{row['dataset']}: {row['title']}, from {row['obtain']}")
        if row["problem"]:
            parts.append(f"  {row['problem']}")
    return "\n".join(parts)


def _of(datasets: pd.DataFrame, column: str) -> list[str]:
    pairs = zip(datasets[column], datasets[f"{column}_expected"], strict=True)
    return [f"{_number(found)} of {_number(expected)}" for found, expected in pairs]


def _number(value: Any) -> str:
    """A number, also as a CSV file gives it back."""
    return "-" if pd.isna(value) or value == "" else str(int(float(value)))
