"""Tables of methods and cells: the order of rows and columns, how a cell is written, Markdown and pages of tables."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from mpfm_kedro.evaluation.columns import CELL
from mpfm_kedro.reports.pages import render, write_mean

Columns = dict[str, pd.DataFrame]  # the rows of a printed column by its heading

RECALL_TITLES = {"recall at 1 %": "recall_1", "recall at 5 %": "recall_5"}  # with tables of their own, if measured
MEASURE_TITLES = RECALL_TITLES | {"pixel AUC": "pixel_auroc", "AUPRO": "aupro", "pixel F1": "pixel_f1"}
MARKS = {"better": "▲", "worse": "▼"}
EMPHASIS = {"best": Markup("<b>{}</b>"), "second": Markup("<u>{}</u>"), "": Markup("{}")}


class Table(NamedTuple):
    """A table with sentences below it; all sections have the same columns of texts, the index is the first one."""

    title: str
    sections: dict[str, pd.DataFrame]  # rows under their headings, which may be empty
    notes: list[str]

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        return next(iter(self.sections.values())).reset_index().columns.tolist()

    @property
    def rows(self) -> dict[str, list[list[str]]]:
        """The cells of each section."""
        return {heading: section.reset_index().to_numpy().tolist() for heading, section in self.sections.items()}


def write_tables(study: str, tables: list[Table], figures: Mapping[str, Figure], **told: Any) -> tuple[str, str]:
    """Tables and remarks as Markdown, and the same with figures as a page; ``told`` is what the remarks tell."""
    blocks, remarks = [], render("remarks.txt", study=study, **told).strip().splitlines()
    for table in tables:
        lines = [table.header, ["---"] * len(table.header)]
        for heading, rows in table.rows.items():
            lines += [[f"*{heading}*", *[""] * (len(table.header) - 1)]] if heading else []
            lines += rows
        blocks += [f"## {table.title}", "\n".join(f"| {' | '.join(map(_markdown, line))} |" for line in lines)]
        blocks += table.notes
    markdown = "\n\n".join([*blocks, *remarks]) + "\n"
    return markdown, render("tables.html", title=study, tables=tables, remarks=remarks, figures=figures)


def _markdown(cell: str) -> str:
    bold = cell.replace("<b>", "**").replace("</b>", "**") if isinstance(cell, Markup) else cell
    return bold.replace("|", "\\|")


def arrange(table: pd.DataFrame) -> dict[str, Columns]:
    """The columns of each printed table by its title: of each dataset and category, the mean over categories first.

    Columns are cells in which something was measured: general, hard mean, hard by known class, large M first.
    """
    cells = measured(table)[CELL].drop_duplicates()
    order = cells.assign(
        category=cells["category"].replace("mean", ""), known_class=cells["known_class"].replace("mean", "")
    )
    arranged: dict[str, Columns] = {}
    for _, cell in cells.loc[order.assign(n_anomalies=-cells["n_anomalies"]).sort_values(CELL).index].iterrows():
        category, known = cell["category"], cell["known_class"]
        title = " ".join(filter(None, [cell["dataset"], "mean over categories" if category == "mean" else category]))
        where = cell["setting"] + {"": "", "mean": " mean"}.get(known, f", known {known}")
        rows = table[(table[CELL] == cell).all(axis=1)]
        arranged.setdefault(title, {})[f"{where}, M={cell['n_anomalies']}"] = rows
    return arranged


def measured(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that are not published ones."""
    return table[table["kind"] != "published"] if "kind" in table else table


def rows_of(columns: Columns) -> pd.DataFrame:
    """The rows of all columns, in the order of their table."""
    return pd.concat(columns.values()).sort_index()


def spread(columns: Columns, write: Callable[[dict[Any, Any]], str], label: str = "method") -> pd.DataFrame:
    """What is written for the row of each method in each column; empty where a method is not in a column."""
    texts = {
        heading: pd.Series({row["method"]: write(row) for row in part.to_dict("records")}, dtype=object)
        for heading, part in columns.items()
    }
    methods = pd.Index(rows_of(columns)["method"].unique(), name=label)
    return pd.DataFrame(texts, index=methods, dtype=object).fillna("")


def emphasise(text: str, place: str) -> Markup:
    """The best in bold, the second underlined."""
    return EMPHASIS[place].format(text)


def with_interval(row: Mapping[Any, Any]) -> str:
    """A difference, its interval and its mark; empty where there is none."""
    if np.isnan(row["difference"]):
        return ""
    return f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]{MARKS.get(row['verdict'], '')}"


def draw_tables(heading: str, table: pd.DataFrame, draw: Callable[[pd.DataFrame], Figure]) -> dict[str, Figure]:
    """A figure of each printed table, under ``heading`` with its title."""
    return {heading.format(title): draw(rows_of(columns)) for title, columns in arrange(table).items()}


def difference_table(title: str, columns: Columns) -> list[Table]:
    """AUC minus that of MPFM, with its interval; nothing where there are no differences."""
    rows = spread({name: part[part["difference"].notna()] for name, part in columns.items()}, with_interval)
    return [Table(f"{title}: difference to MPFM", {"": rows}, [])] if len(rows) else []


def value_tables(title: str, columns: Columns, names: Mapping[str, str]) -> list[Table]:
    """One table of methods for each value by its heading; nothing where it is undefined everywhere."""
    tables = []
    for heading, name in names.items():
        present = {where: part for where, part in columns.items() if f"{name}_mean" in part}
        defined = {where: part[part[f"{name}_mean"].notna()] for where, part in present.items()}
        if defined := {where: part for where, part in defined.items() if len(part)}:
            tables.append(Table(f"{heading}, {title}", {"": spread(defined, partial(write_mean, name=name))}, []))
    return tables
