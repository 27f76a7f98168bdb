"""Tables of methods and cells: the order of rows and columns, how a cell is written, Markdown and pages of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from mpfm_kedro.reports.pages import render

MEASURE_TITLES = {  # with tables of their own, where they were measured
    "recall at 1 %": "recall_1",
    "recall at 5 %": "recall_5",
    "pixel AUC": "pixel_auroc",
    "AUPRO": "aupro",
    "pixel F1": "pixel_f1",
}
MARKS = {"better": "▲", "worse": "▼"}
EMPHASIS = {"best": Markup("<b>{}</b>"), "second": Markup("<u>{}</u>"), "": Markup("{}")}
COVERS = (
    "± is the standard deviation over seeds: other known anomalies, another initialisation, other folds of normals; "
    "the split of the normals is fixed."
)


class Table(NamedTuple):
    """A table with its notes.

    Args:
        title: of the table.
        sections: rows under their headings, which may be empty. All have the same columns, with texts.
        notes: sentences below it.
    """

    title: str
    sections: dict[str, pd.DataFrame]
    notes: list[str]

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        return next(iter(self.sections.values())).columns.tolist()


def write_tables(title: str, tables: list[Table], remarks: list[str], figures: Mapping[str, Figure]) -> tuple[str, str]:
    """Tables and remarks as Markdown, and the same with figures as a page."""
    blocks = []
    for table in tables:
        rows = [table.header, ["---"] * len(table.header)]
        for heading, section in table.sections.items():
            rows += [[f"*{heading}*", *[""] * (len(table.header) - 1)]] if heading else []
            rows += section.to_numpy().tolist()
        blocks += [f"## {table.title}", "\n".join(f"| {' | '.join(map(_markdown, row))} |" for row in rows)]
        blocks += table.notes
    markdown = "\n\n".join([*blocks, *filter(None, remarks)]) + "\n"
    return markdown, render("tables.html", title=title, tables=tables, remarks=remarks, figures=figures)


def _markdown(cell: str) -> str:
    bold = cell.replace("<b>", "**").replace("</b>", "**") if isinstance(cell, Markup) else cell
    return bold.replace("|", "\\|")


def by_category(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each dataset and category with measured figures, under a title; the mean over categories first."""
    keys = measured(table)[["dataset", "category"]].drop_duplicates().itertuples(index=False)
    for dataset, category in sorted(keys, key=lambda key: (key[0], key[1] != "mean", key[1])):
        name = "mean over categories" if category == "mean" else category
        part = table[(table["dataset"] == dataset) & (table["category"] == category)]
        yield " ".join(filter(None, [dataset, name])), part


def by_column(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each column with measured figures by its heading: general, hard mean, hard by known class."""
    columns = ["setting", "known_class", "n_anomalies"]
    keys = measured(table)[columns].drop_duplicates().itertuples(index=False, name=None)
    parts = {}
    for setting, known, number in sorted(keys, key=lambda key: (key[0], key[1] != "mean", key[1], -key[2])):
        where = {"": setting, "mean": f"{setting} mean"}.get(known, f"{setting}, known {known}")
        chosen = (table["setting"] == setting) & (table["known_class"] == known) & (table["n_anomalies"] == number)
        parts[f"{where}, M={number}"] = table[chosen]
    return parts


def measured(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that are not published ones."""
    return table[table["kind"] != "published"] if "kind" in table else table


def column(heading: str, part: pd.DataFrame, write: Callable[[dict[Any, Any]], str]) -> pd.Series:
    """One column of a table: what is written for the row of each method."""
    texts = [write(row) for row in part.to_dict("records")]
    return pd.Series(texts, index=part["method"], name=heading, dtype=object)


def side_by_side(columns: list[pd.Series], methods: Iterable[str], heading: str = "method") -> pd.DataFrame:
    """Columns beside the names of the methods; empty where a method is not in a column."""
    wide = pd.concat(columns, axis=1).reindex(list(methods)).astype(object).fillna("")
    return wide.rename_axis(heading).reset_index()


def mean_and_std(row: Mapping[Any, Any], name: str) -> str:
    """Mean ± standard deviation, the latter of several seeds alone; empty where it is missing or undefined."""
    mean = row.get(f"{name}_mean", np.nan)
    if np.isnan(mean):
        return ""
    return f"{mean:.3f}" if row.get("n_seeds") == 1 else f"{mean:.3f} ± {row[f'{name}_std']:.3f}"


def emphasise(text: str, place: str) -> Markup:
    """The best in bold, the second underlined."""
    return EMPHASIS[place].format(text)


def with_interval(row: Mapping[Any, Any]) -> str:
    """A difference, its interval and its mark; empty where there is none."""
    if np.isnan(row["difference"]):
        return ""
    return f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]{MARKS.get(row['verdict'], '')}"


def difference_table(title: str, parts: Mapping[str, pd.DataFrame]) -> list[Table]:
    """AUC minus that of MPFM, with its interval; nothing where there are no differences."""
    parts = {name: part[part["difference"].notna()] for name, part in parts.items()}
    methods = pd.concat(parts.values()).sort_index()["method"].unique()
    rows = side_by_side([column(name, part, with_interval) for name, part in parts.items()], methods)
    return [Table(f"{title}: difference to MPFM", {"": rows}, [])] if len(rows) else []


def variant_tables(table: pd.DataFrame) -> list[Table]:
    """One table per dataset or category: variants, AUC of every column, difference and published AUC if any."""
    tables = []
    for title, part in by_category(table):
        columns = []
        for name, own in by_column(part).items():
            columns.append(column(name, own, lambda row: mean_and_std(row, "auc")))
            if "difference" in own and own["difference"].notna().any():
                columns.append(column("difference", own, with_interval))
            if own["published_mean"].notna().any():
                columns.append(column("published", own, lambda row: mean_and_std(row, "published")))
        tables.append(Table(title, {"": side_by_side(columns, part["method"].unique(), "variant")}, []))
    return tables


def value_tables(values: pd.DataFrame, name: str, heading: str) -> list[Table]:
    """One table per dataset or category: methods, and mean ± standard deviation of one value in every column."""
    tables = []
    for title, part in by_category(values):
        columns = [column(where, own, lambda row: mean_and_std(row, name)) for where, own in by_column(part).items()]
        tables.append(Table(f"{heading}, {title}", {"": side_by_side(columns, part["method"].unique())}, []))
    return tables
