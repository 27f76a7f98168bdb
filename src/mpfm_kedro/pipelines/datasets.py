"""Which datasets were found, where each is expected, and where it comes from."""

from pathlib import Path
from typing import Any

import pandas as pd
from kedro.pipeline import Pipeline, node

from mpfm_kedro.errors import InputError
from mpfm_kedro.reports.pages import render
from mpfm_kedro.sources import SOURCES, synthetic
from mpfm_kedro.sources.source import Source

NUMBERS = ["normals", "normals_expected", "anomalies", "anomalies_expected"]
COLUMNS = ["dataset", "title", "status", "folder", *NUMBERS, "licence", "obtain", "problem"]


def create_pipeline() -> Pipeline:
    """The list of all datasets."""
    written = ["datasets", "datasets_summary_text"]
    return Pipeline([node(list_datasets, "params:data_root", written, name="list_datasets")])


def list_datasets(data_root: str) -> tuple[pd.DataFrame, str]:
    """One row per source, from the names of its files alone, and what is there in sentences for the terminal.

    Status: found; other counts than published; unusable (something is there, and an error says what); missing. An
    error of a source becomes the text of its row.
    """
    rows = [describe(source, Path(data_root)) for source in SOURCES.values()]
    table = pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(NUMBERS, "Int64"))
    return table, render("datasets.txt", rows=rows)


def describe(source: Source, root: Path) -> dict[str, Any]:
    """What was found of one source."""
    folder = root / source.name
    row: dict[str, Any] = {"dataset": source.name, "title": source.title, "folder": str(folder), "problem": ""}
    row |= {"licence": source.licence, "obtain": source.obtain} | _expected_numbers(source, list(source.counts or {}))
    if source is synthetic.SOURCE and not folder.is_dir():  # to locate them would draw them
        return row | {"status": "missing", "problem": "Drawn when they are first used."}
    try:
        folder = source.locate(root)
        return row | {"folder": str(folder)} | _compare(source, source.list_samples(folder))
    except (InputError, OSError) as error:
        status = "unusable" if folder.exists() else "missing"
        return row | {"folder": str(folder), "status": status, "problem": str(error)}


def _compare(source: Source, samples: pd.DataFrame) -> dict[str, Any]:
    """Numbers of the listed samples against the published ones of the categories that are there."""
    anomalies = int(samples["label"].sum())
    compared = source.compare_counts(samples)
    problems = [f"{category} {problem}".strip() for category, found in compared.items() for problem in found]
    status = "other counts" if problems else "found"
    if absent := sorted(set(source.counts or {}) - set(compared)):
        problems.append(f"not here: {', '.join(absent)}")
    found = {"status": status, "normals": len(samples) - anomalies, "anomalies": anomalies}
    return found | _expected_numbers(source, list(compared)) | {"problem": "; ".join(problems)}


def _expected_numbers(source: Source, categories: list[str]) -> dict[str, int]:
    """Published numbers of several categories together; none for a source without any."""
    counts = [source.counts[category] for category in categories] if source.counts else []
    normals, anomalies = sum(n.train + n.test for n in counts), sum(n.n_anomalies for n in counts)
    return {"normals_expected": normals, "anomalies_expected": anomalies} if counts else {}
