"""Ranks of methods over datasets, and whether their differences could be chance.

J. Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 7, 2006: the Friedman test asks whether
all methods rank alike; where they do not, two methods differ (Nemenyi) if their mean ranks differ by at least
CD = q √(k (k + 1) / 6 n), for k methods on n datasets; q √2 is a quantile of the studentised range.
"""

import numpy as np
import pandas as pd

from mpfm_kedro.evaluation.columns import TRAINED

LEVEL = 0.05
EVERYTHING = "all"
CELL = ["name", "setting", "n_anomalies"]
RANKS = ["scope", "method", "kind", "mean_rank", "n_datasets", "n_methods"]
RANKS += ["friedman", "p_value", "critical_difference", "p_to_mpfm", "excluded"]


def rank_methods(table: pd.DataFrame, measure: str = "auc_mean") -> pd.DataFrame:
    """Mean ranks (1 is best) of the measured methods over the datasets of a study, and the tests.

    One scope per setting and M, and one over all of them, in which every dataset counts once: with the mean of its
    cells. A dataset in which not all methods of a scope were measured is excluded from it, and named. The table has
    one row per dataset (``name``), setting, M and method; the column ``measure`` decides, higher is better.
    """
    measured = table[(table["kind"] != "published") & table[measure].notna()]
    if measured.empty:
        return pd.DataFrame(columns=RANKS)
    cells = measured.pivot_table(index=CELL, columns="method", values=measure, sort=False)
    kinds = measured.drop_duplicates("method").set_index("method")["kind"]
    scopes = {}
    for setting, number in sorted({(setting, -number) for _, setting, number in cells.index}):
        own = cells[[at[1:] == (setting, -number) for at in cells.index]].droplevel([1, 2])
        scopes[scope_name(setting, -number)] = own.dropna(axis=1, how="all")
    scopes[EVERYTHING] = cells.dropna().groupby(level="name", sort=False).mean().reindex(measured["name"].unique())
    return pd.concat([_rank(scope, wide, kinds) for scope, wide in scopes.items()], ignore_index=True)


def scope_name(setting: str, n_anomalies: int) -> str:
    """A setting and M, as tables name them."""
    return f"{setting}, M={n_anomalies}"


def critical_difference(n_methods: int, n_datasets: int) -> float:
    """CD of Nemenyi's test at the level of 5 %."""
    from scipy.stats import studentized_range  # slow to import

    return float(studentized_range.ppf(1 - LEVEL, n_methods, np.inf) / np.sqrt(2)) * _unit(n_methods, n_datasets)


def _rank(scope: str, wide: pd.DataFrame, kinds: pd.Series) -> pd.DataFrame:
    """The ranks of one scope, the best first; ``wide`` has a row per dataset and a column per method."""
    excluded = wide.index[wide.isna().any(axis=1)]
    wide = wide.drop(index=excluded)
    n, k = wide.shape
    mean = wide.rank(axis=1, ascending=False).mean()
    statistic, p_value = _friedman(wide)
    tested = n > 1 and k > 1
    found = pd.DataFrame({"scope": scope, "method": mean.index, "mean_rank": mean.to_numpy()})
    found = found.assign(
        kind=found["method"].map(kinds),
        n_datasets=n,
        n_methods=k,
        friedman=statistic,
        p_value=p_value,
        critical_difference=critical_difference(k, n) if tested else np.nan,
        p_to_mpfm=_p_values(mean, n) if tested and TRAINED in mean else np.nan,
        excluded=", ".join(excluded),
    )
    return found.dropna(subset="mean_rank").sort_values("mean_rank", kind="stable")[RANKS]


def _friedman(wide: pd.DataFrame) -> tuple[float, float]:
    """Statistic and p-value; undefined with one dataset, two methods, or where all methods are equal everywhere."""
    from scipy.stats import friedmanchisquare  # slow to import

    n, k = wide.shape
    if n < 2 or k < 3 or (wide.nunique(axis=1) == 1).all():
        return np.nan, np.nan
    found = friedmanchisquare(*wide.to_numpy().T)
    return float(found.statistic), float(found.pvalue)


def _p_values(mean: pd.Series, n_datasets: int) -> np.ndarray:
    """Nemenyi's p-value of every method against MPFM."""
    from scipy.stats import studentized_range  # slow to import

    q = np.sqrt(2) * (mean - mean[TRAINED]).abs() / _unit(len(mean), n_datasets)
    return np.asarray(studentized_range.sf(q, len(mean), np.inf))


def _unit(n_methods: int, n_datasets: int) -> float:
    """Standard deviation of a difference of two mean ranks, √(k (k + 1) / 6 n)."""
    return float(np.sqrt(n_methods * (n_methods + 1) / (6 * n_datasets)))
