"""Mean ranks and tests over datasets, against scipy and printed critical values."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import friedmanchisquare, rankdata

from mpfm_kedro.evaluation.ranks import critical_difference, rank_methods

METHODS = ["MPFM", "DRA", "kNN-5", "Mahalanobis"]


def table(aucs: np.ndarray, setting: str = "general", number: int = 10, methods: list[str] = METHODS) -> pd.DataFrame:
    """One row per dataset (row of ``aucs``) and method; what is not a number was not measured."""
    rows = [
        {"name": f"d{d}", "setting": setting, "n_anomalies": number, "method": method, "kind": "ours"}
        | {"auc_mean": aucs[d, m]}
        for d in range(len(aucs))
        for m, method in enumerate(methods)
        if not np.isnan(aucs[d, m])
    ]
    return pd.DataFrame(rows)


def test_ranks_and_test_are_those_of_scipy():
    aucs = np.random.default_rng(3).random((14, 4)).round(1)  # with ties
    own = rank_methods(table(aucs)).query("scope == 'general, M=10'").set_index("method")
    expected = rankdata(-aucs, axis=1).mean(axis=0)
    assert own["mean_rank"][METHODS].tolist() == pytest.approx(expected)
    assert own["mean_rank"].is_monotonic_increasing, "the best comes first"
    found = friedmanchisquare(*aucs.T)
    assert (own["friedman"].iloc[0], own["p_value"].iloc[0]) == pytest.approx((found.statistic, found.pvalue))


@pytest.mark.parametrize(("k", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_critical_values_are_those_of_the_printed_table(k, q):
    """J. Demšar, JMLR 7, 2006, table 5 (a)."""
    assert critical_difference(k, 6) == pytest.approx(q * np.sqrt(k * (k + 1) / 36), abs=2e-3)


def test_a_method_is_distinguished_from_mpfm_exactly_where_ranks_differ_by_cd():
    rng = np.random.default_rng(0)
    aucs = np.linspace(0, 0.3, 4) + 0.15 * rng.random((12, 4))
    own = rank_methods(table(aucs)).query("scope == 'general, M=10'").set_index("method")
    apart = (own["mean_rank"] - own["mean_rank"]["MPFM"]).abs() >= own["critical_difference"].iloc[0]
    assert 0 < apart.sum() < 3
    assert (own["p_to_mpfm"] < 0.05).tolist() == apart.tolist()


def test_a_dataset_without_all_methods_is_excluded_by_name_and_its_other_cells_count():
    general = np.array([[0.9, 0.8, 0.7, 0.6], [0.6, 0.7, 0.8, 0.9]])
    hard = np.array([[0.9, 0.8, 0.7, 0.6], [0.9, np.nan, 0.1, np.nan]])
    found = rank_methods(pd.concat([table(general), table(hard, "hard")]))
    in_scope = {scope: part.set_index("method") for scope, part in found.groupby("scope")}
    assert in_scope["hard, M=10"]["mean_rank"][METHODS].tolist() == [1, 2, 3, 4]
    assert set(in_scope["hard, M=10"]["excluded"]) == {"d1"}
    assert in_scope["hard, M=10"]["critical_difference"].isna().all(), "one dataset is no test"
    assert in_scope["all"]["mean_rank"][METHODS].tolist() == [2.5] * 4, "d1 counts once, by its general cell"
    assert set(in_scope["all"]["n_datasets"]) == {2}
