"""The report of a study over several datasets: the paper's two tables, mean ranks, and what is not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.published import PUBLISHED
from mpfm_kedro.experiments.ranks import EVERYTHING, scope_name
from mpfm_kedro.provenance import code_revision
from mpfm_kedro.reports.comparison import HEADINGS, LEGEND, auc_entry, footnotes
from mpfm_kedro.reports.layout import COVERS, Entry, Section, Table, measured, rows_by_method, with_interval
from mpfm_kedro.reports.markup import as_markdown, as_page
from mpfm_kedro.reports.rank_figure import draw_ranks

DONE = "done"
TITLES = {"general": "General setting", "hard": "Hard setting"}
RANKED = (
    "Mean rank: 1 is best; among the measured methods of each dataset, then the mean over datasets. Over all cells "
    "every dataset counts once, with the mean AUC of its cells. Where some methods were not measured, none is ranked."
)
EVERY = "all cells"


class DatasetColumn(NamedTuple):
    """A dataset with M known anomalies, which is a column of a table."""

    dataset: str
    n_anomalies: int

    @property
    def name(self) -> str:
        """Its heading."""
        return f"{self.dataset}, M={self.n_anomalies}"

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table of one setting that belong to it."""
        return table[(table["name"] == self.dataset) & (table["n_anomalies"] == self.n_anomalies)]


def gather_cells(plan: pd.DataFrame, compared: Mapping[str, Callable[[], pd.DataFrame]]) -> pd.DataFrame:
    """All rows of the comparisons that the study has done, with the name of the results, in the order of its file."""
    load = {folder.strip("/"): table for folder, table in compared.items()}
    names = [str(name) for name in plan["name"][plan["status"] == DONE]]
    if missing := [name for name in names if name not in load]:
        raise InputError(f"There is no comparison of {', '.join(missing)}; start the study again")
    if not names:
        raise InputError("No dataset of the study has been compared: there is nothing to report")
    tables = [load[name]().assign(name=name) for name in names]
    table = pd.concat(tables, ignore_index=True)
    return table[["name", *(column for column in table if column != "name")]]


def printed_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of the paper's tables: of every dataset the mean over its categories and over known classes, if any."""
    kept = []
    for _, own in cells.groupby("name", sort=False):
        for _, part in own.groupby("setting", sort=False):
            for column in ("category", "known_class"):
                values = measured(part)[column].unique()
                part = part[part[column] == ("mean" if "mean" in values else values[0] if len(values) else "")]
            kept.append(part)
    return pd.concat(kept).sort_index()


def describe_study(plan: pd.DataFrame, study: str) -> str:
    """How the tables were made."""
    done = plan["name"][plan["status"] == DONE]
    return (
        f"Made by `kedro run --pipelines=study` of {Path(study).name} on {date.today().isoformat()}, revision "
        f"{code_revision()}: {len(done)} of {len(plan)} comparisons ({', '.join(done)})."
    )


def write_study(table: pd.DataFrame, ranks: pd.DataFrame, plan: pd.DataFrame, origin: str) -> str:
    """The study as Markdown."""
    return as_markdown(study_tables(table, ranks, plan), _remarks(ranks, origin))


def write_study_page(table: pd.DataFrame, ranks: pd.DataFrame, plan: pd.DataFrame, origin: str) -> str:
    """The study as one HTML page with the plot of the ranks."""
    figures = {"Mean ranks and critical differences": draw_ranks(ranks)}
    return as_page("Study", study_tables(table, ranks, plan), _remarks(ranks, origin), figures)


def study_tables(table: pd.DataFrame, ranks: pd.DataFrame, plan: pd.DataFrame) -> list[Table]:
    """AUC and differences of both settings, mean ranks, and the datasets of the study."""
    pairs = [
        each
        for setting, title in TITLES.items()
        if len(measured(part := table[table["setting"] == setting]))
        for each in (_aucs(title, setting, part, ranks), _differences(title, part))
    ]
    return [*(each for each in pairs if each.sections), _rank_table(ranks), _plan_table(plan)]


def _columns(table: pd.DataFrame) -> list[DatasetColumn]:
    """The columns with measured figures: large M first, datasets in the order of the study."""
    pairs = measured(table)[["name", "n_anomalies"]].drop_duplicates().itertuples(index=False)
    return sorted((DatasetColumn(name, int(number)) for name, number in pairs), key=lambda column: -column.n_anomalies)


def _aucs(title: str, setting: str, table: pd.DataFrame, ranks: pd.DataFrame) -> Table:
    columns = _columns(table)
    table = pd.concat([column.rows(table) for column in columns])
    numbers = list(dict.fromkeys(column.n_anomalies for column in columns))
    scopes = [scope_name(setting, number) for number in numbers]
    sections = []
    for kind, heading in HEADINGS.items():
        rows = rows_by_method(table[table["kind"] == kind], columns, auc_entry)
        rows = [row + [_rank_entry(ranks, scope, row[0].text) for scope in scopes] for row in rows]
        sections += [Section(heading, rows)] if rows else []
    header = ["method", *(column.name for column in columns), *(f"mean rank, M={number}" for number in numbers)]
    return Table(title, header, sections, [*footnotes(table), *_seeds(table, columns)])


def _seeds(table: pd.DataFrame, columns: list[DatasetColumn]) -> list[str]:
    """How many seeds the columns have, if not all have as many."""
    numbers = {column.name: int(measured(column.rows(table))["n_seeds"].max()) for column in columns}
    if len(set(numbers.values())) < 2:
        return []
    return ["Seeds: " + "; ".join(f"{name}: {number}" for name, number in numbers.items()) + "."]


def _differences(title: str, table: pd.DataFrame) -> Table:
    columns = _columns(table)
    rows = rows_by_method(table[table["difference"].notna()], columns, lambda _, record: [Entry(with_interval(record))])
    header = ["method", *(column.name for column in columns)]
    return Table(f"{title}: difference to MPFM", header, [Section("", rows)] if rows else [], [])


def _rank_table(ranks: pd.DataFrame) -> Table:
    """Mean ranks of every scope, the best over all cells first; and what the tests say."""
    scopes = {str(scope): part for scope, part in ranks.groupby("scope", sort=False)}
    best_first = [scopes[EVERYTHING]] if EVERYTHING in scopes else []
    methods = dict.fromkeys(str(name) for part in [*best_first, *scopes.values()] for name in part["method"])
    rows = [[Entry(method), *(_rank_entry(ranks, scope, method) for scope in scopes)] for method in methods]
    header = ["method", *(EVERY if scope == EVERYTHING else scope for scope in scopes)]
    return Table("Mean ranks", header, [Section("", rows)], [_test(part) for part in scopes.values()])


def _rank_entry(ranks: pd.DataFrame, scope: str, method: str) -> Entry:
    own = ranks[ranks["scope"] == scope]
    found = own["mean_rank"][own["method"] == method.removesuffix(PUBLISHED)]
    if found.empty or method.endswith(PUBLISHED):
        return Entry()
    return Entry(f"{found.iloc[0]:.2f}", "best" if found.iloc[0] == own["mean_rank"].min() else "")


def _test(ranks: pd.DataFrame) -> str:
    """What the tests say of one scope."""
    row = ranks.iloc[0]
    name = EVERY if row["scope"] == EVERYTHING else row["scope"]
    text = f"{name}: {row['n_methods']} methods on {row['n_datasets']} datasets"
    text += f" (not ranked: {row['excluded']})" if row["excluded"] else ""
    if np.isnan(row["critical_difference"]):
        return f"{text}; too few for a test."
    text += "" if np.isnan(row["p_value"]) else f"; Friedman χ² = {row['friedman']:.1f}, p = {row['p_value']:.3g}"
    behind = ranks["method"][ranks["p_to_mpfm"] < 0.05].tolist()
    other = f"; unlike MPFM: {', '.join(behind)}" if behind else "; no method is distinguished from MPFM"
    return f"{text}; Nemenyi, 5 %: mean ranks that differ by {row['critical_difference']:.1f} are distinguished{other}."


def _plan_table(plan: pd.DataFrame) -> Table:
    header = ["name", "dataset", "category", "status", "images", "problem"]
    rows = [[Entry(str(row[name])) for name in header] for row in plan.fillna("").to_dict("records")]
    return Table("Datasets of the study", header, [Section("", rows)], [])


def _remarks(ranks: pd.DataFrame, origin: str) -> list[str]:
    return [origin, LEGEND, RANKED, COVERS]
