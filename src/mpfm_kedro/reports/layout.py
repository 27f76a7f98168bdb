"""Tables of methods and cells as they are printed: their parts, and the order of rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pandas as pd

PIXEL_TITLES = {"pixel AUC": "pixel_auroc", "AUPRO": "aupro", "pixel F1": "pixel_f1"}
MARKS = {"better": "▲", "worse": "▼"}
COVERS = (
    "± is the standard deviation over seeds: other known anomalies, another initialisation, other folds of normals; "
    "the split of the normals is fixed."
)


class Selecting(Protocol):
    """What selects the rows of a tidy table that belong to a column of a printed one."""

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows that belong to it."""


Selector = TypeVar("Selector", bound=Selecting)


class Column(NamedTuple):
    """A cell of one dataset and category, which is a column of its table."""

    setting: str
    known_class: str
    n_anomalies: int

    @property
    def name(self) -> str:
        """Its heading."""
        where = {"": self.setting, "mean": f"{self.setting} mean"}
        return f"{where.get(self.known_class, f'{self.setting}, known {self.known_class}')}, M={self.n_anomalies}"

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a tidy table that belong to it."""
        chosen = (table["setting"] == self.setting) & (table["known_class"] == self.known_class)
        return table[chosen & (table["n_anomalies"] == self.n_anomalies)]


@dataclass(frozen=True)
class Entry:
    """One entry of a table; ``place`` is best, second or empty."""

    text: str = ""
    place: str = ""


@dataclass(frozen=True)
class Section:
    """Rows of a table under a heading, which may be empty."""

    heading: str
    rows: list[list[Entry]]


@dataclass(frozen=True)
class Table:
    """A table with its notes."""

    title: str
    header: list[str]
    sections: list[Section]
    notes: list[str]


def by_category(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each dataset and category with measured figures, under a title; the mean over categories first."""
    keys = measured(table)[["dataset", "category"]].drop_duplicates().itertuples(index=False)
    for dataset, category in sorted(keys, key=lambda key: (key[0], key[1] != "mean", key[1])):
        name = "mean over categories" if category == "mean" else category
        part = table[(table["dataset"] == dataset) & (table["category"] == category)]
        yield " ".join(filter(None, [dataset, name])), part


def columns_in_order(table: pd.DataFrame) -> list[Column]:
    """The columns with measured figures: general, hard mean, hard by known class; large M first."""
    keys = measured(table)[list(Column._fields)].drop_duplicates().itertuples(index=False)
    columns = [Column(setting, known_class, int(number)) for setting, known_class, number in keys]
    return sorted(columns, key=lambda c: (c.setting, c.known_class != "mean", c.known_class, -c.n_anomalies))


def measured(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that are not published ones."""
    return table[table["kind"] != "published"] if "kind" in table else table


def rows_by_method(
    table: pd.DataFrame, columns: list[Selector], entries: Callable[[Selector, dict[Any, Any]], list[Entry]]
) -> list[list[Entry]]:
    """One row per method: its name, and the ``entries`` of every column and its record, empty where there is none."""
    rows = []
    for method, own in table.groupby("method", sort=False):
        row = [Entry(str(method))]
        for column in columns:
            record = next(iter(column.rows(own).to_dict("records")), {})
            row += entries(column, record)
        rows.append(row)
    return rows


def plus_minus(record: dict[Any, Any], name: str) -> str:
    """Mean ± standard deviation, the latter of several seeds alone; empty where it is missing or undefined."""
    mean = record.get(f"{name}_mean", np.nan)
    if np.isnan(mean):
        return ""
    return f"{mean:.3f}" if record.get("n_seeds") == 1 else f"{mean:.3f} ± {record[f'{name}_std']:.3f}"


def with_interval(record: dict[Any, Any]) -> str:
    """A difference, its interval and its mark; empty where there is none."""
    difference = record.get("difference", np.nan)
    if np.isnan(difference):
        return ""
    return f"{difference:+.3f} [{record['low']:+.3f}, {record['high']:+.3f}]{MARKS.get(record['verdict'], '')}"


def variant_tables(table: pd.DataFrame) -> list[Table]:
    """One table per dataset or category: variants, AUC of every column, difference and published AUC if any."""
    return [_variant_table(title, part) for title, part in by_category(table)]


def value_tables(values: pd.DataFrame, name: str, heading: str) -> list[Table]:
    """One table per dataset or category: methods, and mean ± standard deviation of one value in every column."""
    tables = []
    for title, part in by_category(values):
        columns = columns_in_order(part)
        rows = rows_by_method(part, columns, lambda _, record: [Entry(plus_minus(record, name))])
        header = ["method", *(column.name for column in columns)]
        tables.append(Table(f"{heading}, {title}", header, [Section("", rows)], []))
    return tables


def _variant_table(title: str, table: pd.DataFrame) -> Table:
    columns = columns_in_order(table)
    texts: dict[Column, dict[str, Callable[[dict[Any, Any]], str]]] = {}
    for column in columns:
        own = column.rows(table)
        texts[column] = {column.name: lambda record: plus_minus(record, "auc")}
        if "difference" in own and own["difference"].notna().any():
            texts[column]["difference"] = with_interval
        if own["published_mean"].notna().any():
            texts[column]["published"] = lambda record: plus_minus(record, "published")
    rows = rows_by_method(
        table, columns, lambda column, record: [Entry(text(record)) for text in texts[column].values()]
    )
    return Table(title, ["variant", *(name for own in texts.values() for name in own)], [Section("", rows)], [])
