"""Results that the paper publishes, in the names of this project.

``published_results.csv`` and ``published_ablation.csv`` have the cells of the summary; ``note`` says where the
paper contradicts itself. They are as published, slips included.
"""

from importlib.resources import files

import pandas as pd

from mpfm_kedro.evaluation.columns import CELL, CELL_METHOD, TRAINED
from mpfm_kedro.evaluation.measures import SUMMARY

PUBLISHED = " (published)"


def load_published(dataset: str) -> pd.DataFrame:
    """The published results of a dataset as rows of a summary, e.g. of ``MPFM (published)``; none of other datasets."""
    return _read("published_results.csv", dataset)


def load_published_ablation(dataset: str) -> pd.DataFrame:
    """The published ablation and sensitivity of a dataset; ``MPFM (published)`` is the whole method."""
    return _read("published_ablation.csv", dataset)


def _read(name: str, dataset: str) -> pd.DataFrame:
    with files(__package__).joinpath(name).open(encoding="utf-8") as file:
        table = pd.read_csv(file, keep_default_na=False)
    own = table[table["dataset"] == dataset]
    return own.assign(method=own["method"] + PUBLISHED).reindex(columns=[*SUMMARY, "note"]).reset_index(drop=True)


def as_columns(published: pd.DataFrame) -> pd.DataFrame:
    """Published results as columns for the measured methods of the same names, with the difference to MPFM."""
    named = published.assign(method=published["method"].str.removesuffix(PUBLISHED))
    named = named.rename(columns={"auc_mean": "published_mean", "auc_std": "published_std"})
    whole = named[named["method"] == TRAINED].set_index(CELL)["published_mean"].rename("whole")
    named = named.join(whole, on=CELL)
    return named.assign(published_difference=named["published_mean"] - named["whole"])[
        [*CELL_METHOD, "published_mean", "published_std", "published_difference"]
    ]
