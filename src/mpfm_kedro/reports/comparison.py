"""The comparison: all methods in all cells, published results under their own heading."""

from typing import Any

import pandas as pd

from mpfm_kedro.evaluation.columns import CELL, CELL_METHOD
from mpfm_kedro.reports import tables
from mpfm_kedro.reports.pages import write_mean
from mpfm_kedro.reports.study_figures import draw_comparison

HEADINGS = {
    "ours": "ours",
    "baseline": "baselines, rebuilt here on the same frozen backbone, not their authors' code",
    "reference": "references",
    "published": "published (as the MPFM paper prints them, other configuration)",
}
PLACES = {1: "best", 2: "second"}
NOTED = "†"


def comparison_table(
    summary: pd.DataFrame, differences: pd.DataFrame, trials: pd.DataFrame, published: pd.DataFrame
) -> pd.DataFrame:
    """One row per cell and method: summary, difference to MPFM with its interval, kind and budget.

    Ours come first, then baselines, references and published results. ``place`` is best or second among the measured
    methods of the cell, to three digits: equal values share a place. ``trials`` has the kind, budget and note of each
    method, in as many rows as there are runs of it.
    """
    methods = trials[["method", "kind", "budget", "note"]].drop_duplicates("method")
    own = summary.merge(differences, on=CELL_METHOD, how="left").merge(methods, on="method")
    own["place"] = own.groupby(CELL)["auc_mean"].transform(_place)
    claimed = published.assign(kind="published")
    table = pd.concat([own, claimed], ignore_index=True) if len(claimed) else own
    order = list(dict.fromkeys([*methods["method"], *claimed["method"]]))
    rank = table.assign(kind=table["kind"].map(list(HEADINGS).index), method=table["method"].map(order.index))
    table = table.loc[rank.sort_values(["dataset", "kind", "method"], kind="stable").index].reset_index(drop=True)
    return table.astype({"n_seeds": "Int64"}).fillna(dict.fromkeys(["verdict", "place", "note", "budget"], ""))


def write_comparison(table: pd.DataFrame, origin: str, first_seed: int) -> tuple[str, str]:
    """The comparison as Markdown and as a page; ``origin`` says how it was made."""
    figures = tables.draw_tables("AUC on {} (hollow: published)", table, draw_comparison)
    seeds = {"first_seed": first_seed, "last_seed": first_seed + int(table["n_seeds"].max()) - 1}
    return tables.write_tables("Comparison", comparison_tables(table), figures, origin=origin, **seeds)


def comparison_tables(table: pd.DataFrame) -> list[tables.Table]:
    """AUC and differences of every dataset or category, the mean over categories first; then recall and pixel measures.

    The latter are of methods that have heat maps, where there are masks.
    """
    printed = []
    for title, columns in tables.arrange(table).items():
        costs = tables.rows_of(columns).groupby("method").agg({"seconds": "mean", "budget": "first"})
        costs["seconds"] = costs["seconds"].map("{:.3g}".format).replace("nan", "")
        costs = costs.rename(columns={"seconds": "seconds per run"})
        printed += [auc_table(title, columns, costs), *tables.difference_table(title, columns)]
    for title, columns in tables.arrange(table).items():
        printed += tables.value_tables(title, columns, tables.MEASURE_TITLES)
    return printed


def auc_table(title: str, columns: tables.Columns, more: pd.DataFrame) -> tables.Table:
    """AUC of the methods of each kind under its heading, and ``more`` of each method, with footnotes."""
    sections = {}
    for kind, heading in HEADINGS.items():
        rows = tables.spread({name: part[part["kind"] == kind] for name, part in columns.items()}, write_auc)
        if len(rows):
            sections[heading] = rows.join(more).fillna("")
    return tables.Table(title, sections, footnotes(tables.rows_of(columns)))


def write_auc(row: dict[Any, Any]) -> str:
    """AUC ± standard deviation with its marks."""
    marks = tables.MARKS.get(row["verdict"], "") + (NOTED if row["note"] else "")
    return tables.emphasise(write_mean(row, "auc") + marks, row["place"])


def footnotes(table: pd.DataFrame) -> list[str]:
    """The notes of a table, each once, with the methods that they belong to."""
    named = table[["method", "note"]].assign(note=table["note"].str.split("; ")).explode("note")
    notes = named[named["note"] != ""].groupby("note", sort=False)["method"]
    return [f"{NOTED} {note} ({', '.join(methods.unique())})" for note, methods in notes]


def _place(means: pd.Series) -> pd.Series:
    """Best and second at the printed precision, if there is something to compare."""
    if len(means) < 2:
        return means.map(lambda _: "")
    return means.round(3).rank(method="dense", ascending=False).map(PLACES).fillna("")
