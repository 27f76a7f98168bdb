"""The report of a study over several datasets: the paper's two tables, mean ranks, and what is not there."""

from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.ranks import EVERYTHING, rank_methods, scope_name
from mpfm_kedro.provenance import code_revision
from mpfm_kedro.reports import tables
from mpfm_kedro.reports.comparison import auc_table
from mpfm_kedro.reports.pages import render
from mpfm_kedro.reports.study_figures import draw_ranks

DONE = "done"
TITLES = {"general": "General setting", "hard": "Hard setting"}
EVERY = "all cells"


def gather_cells(plan: pd.DataFrame, compared: Mapping[str, Callable[[], pd.DataFrame]]) -> pd.DataFrame:
    """All rows of the comparisons that the study has done, with the name of the results, in the order of its file."""
    load = {folder.strip("/"): table for folder, table in compared.items()}
    names = [str(name) for name in plan["name"][plan["status"] == DONE]]
    if missing := [name for name in names if name not in load]:
        raise InputError(f"There is no comparison of {', '.join(missing)}; start the study again")
    if not names:
        raise InputError("No dataset of the study has been compared: there is nothing to report")
    table = pd.concat([load[name]().assign(name=name) for name in names], ignore_index=True)
    return table[["name", *(column for column in table if column != "name")]]


def printed_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of the paper's tables: of every dataset the mean over its categories and over known classes, if any."""
    kept = []
    for _, own in cells.groupby("name", sort=False):
        for _, part in own.groupby("setting", sort=False):
            for name in ("category", "known_class"):
                values = tables.measured(part)[name].unique()
                part = part[part[name] == ("mean" if "mean" in values else values[0] if len(values) else "")]
            kept.append(part)
    return pd.concat(kept).sort_index()


def describe_study(plan: pd.DataFrame, study: str) -> str:
    """How the tables were made."""
    done = plan["name"][plan["status"] == DONE]
    return (
        f"Made by `kedro study` of {Path(study).name} on {date.today().isoformat()}, revision "
        f"{code_revision()}: {len(done)} of {len(plan)} comparisons ({', '.join(done)})."
    )


def write_study(table: pd.DataFrame, ranks: pd.DataFrame, plan: pd.DataFrame, origin: str) -> tuple[str, str]:
    """The study as Markdown, and as a page with the plot of the ranks."""
    printed = []
    for setting, title in TITLES.items():
        if columns := _columns(table[table["setting"] == setting]):
            numbers = tables.rows_of(columns)["n_anomalies"].unique()
            scopes = {f"mean rank, M={number}": scope_name(setting, number) for number in numbers}
            ranked = _write_ranks({name: ranks[ranks["scope"] == scope] for name, scope in scopes.items()})
            aucs = auc_table(title, columns, ranked)
            printed += [aucs._replace(notes=[*aucs.notes, *_seeds(columns)]), *tables.difference_table(title, columns)]
            printed += tables.value_tables(title, columns, tables.RECALL_TITLES)
    planned = plan[["name", "dataset", "category", "status", "images", "problem"]].fillna("").astype(str)
    printed.append(_rank_table("Mean ranks", ranks))
    for title, name in tables.RECALL_TITLES.items():
        by_recall = rank_methods(table, f"{name}_mean")
        printed += [_rank_table(f"Mean ranks by {title}", by_recall)] if len(by_recall) else []
    printed += [tables.Table("Datasets of the study", {"": planned.set_index("name")}, [])]
    figures = {"Mean ranks and critical differences": draw_ranks(ranks)}
    return tables.write_tables("Study", printed, figures, origin=origin)


def _columns(table: pd.DataFrame) -> tables.Columns:
    """The rows of each column with measured figures: large M first, datasets in the order of the study."""
    pairs = tables.measured(table)[["name", "n_anomalies"]].drop_duplicates()
    pairs = pairs.sort_values("n_anomalies", ascending=False, kind="stable")
    return {
        f"{name}, M={number}": table[(table["name"] == name) & (table["n_anomalies"] == number)]
        for name, number in pairs.itertuples(index=False)
    }


def _seeds(columns: tables.Columns) -> list[str]:
    """How many seeds the columns have, if not all have as many."""
    numbers = {name: int(tables.measured(part)["n_seeds"].max()) for name, part in columns.items()}
    if len(set(numbers.values())) < 2:
        return []
    return ["Seeds: " + "; ".join(f"{name}: {number}" for name, number in numbers.items()) + "."]


def _rank_table(title: str, ranks: pd.DataFrame) -> tables.Table:
    """Mean ranks of every scope, the best over all cells first; and what the tests say."""
    best_first = ranks.sort_values("scope", key=lambda scope: scope != EVERYTHING, kind="stable", ignore_index=True)
    scopes = {scope: best_first[best_first["scope"] == scope] for scope in ranks["scope"].unique()}
    columns = {EVERY if scope == EVERYTHING else scope: part for scope, part in scopes.items()}
    return tables.Table(title, {"": _write_ranks(columns)}, [_describe_test(*column) for column in columns.items()])


def _write_ranks(columns: tables.Columns) -> pd.DataFrame:
    """Mean ranks of methods, the best of each column in bold."""
    marked = {name: part.assign(best=part["mean_rank"] == part["mean_rank"].min()) for name, part in columns.items()}
    return tables.spread(marked, lambda row: tables.emphasise(f"{row['mean_rank']:.2f}", "best" if row["best"] else ""))


def _describe_test(name: str, ranks: pd.DataFrame) -> str:
    """What the tests say of one scope."""
    behind = ranks["method"][ranks["p_to_mpfm"] < 0.05].tolist()
    return render("rank_test.txt", name=name, row=ranks.iloc[0], behind=behind).replace("\n", "")
