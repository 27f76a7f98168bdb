"""Metrics are scikit-learn's; the ± of a mean over classes is the standard deviation over seeds of that mean."""

from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from evaluation.synthetic_trials import one, trial_costs, trial_scores
from mpfm_kedro.datasets.files import TablesDataset
from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.columns import RECALLS
from mpfm_kedro.evaluation.measures import (
    SUMMARY,
    as_metrics,
    measure_trials,
    recall_at,
    summarise,
    summarise_setting,
    summarise_tested_classes,
)

CONTRACT = ["dataset", "category", "method", "known_class", "n_anomalies"]
CONTRACT += ["auc_mean", "auc_std", "ap_mean", "ap_std", "n_seeds"]
PIXELS = ["pixel_auroc", "aupro", "pixel_f1"]
METHODS = ["MPFM", "MPFM, no anomaly known"]


def test_metrics_of_a_trial_are_scikit_learn_s():
    scores = trial_scores({"MPFM": 1.0, "DRA": 0.5}, n_seeds=2)
    metrics = measure_trials(scores, trial_costs(scores))
    assert len(metrics) == scores.groupby(["setting", "run", "method"]).ngroups == 2 * 3 * 2 * 2
    for row in metrics.to_dict("records"):
        part = scores[(scores["run"] == row["run"]) & (scores["method"] == row["method"])]
        assert row["auc"] == roc_auc_score(part["label"], part["score"])
        assert row["ap"] == average_precision_score(part["label"], part["score"])
        assert row["n_test_normals"] == 40
        assert row["seconds"] == 2.0
        assert row["known_class"] == part["known_class"].iloc[0]


def test_summary_has_both_settings_and_their_means():
    scores = trial_scores({"MPFM": 1.0, "A": 0.5}, categories=("nut", "tile"), n_seeds=2)
    metrics = measure_trials(scores, trial_costs(scores, 3.5))
    summary = summarise(metrics)
    assert summary.columns.tolist()[: len(SUMMARY)] == SUMMARY
    own = metrics[(metrics["method"] == "A") & (metrics["n_anomalies"] == 1)]
    of_seed = own[own["setting"] == "hard"].groupby(["seed", "category"])["auc"].mean().groupby("seed").mean()
    cell = {"method": "A", "n_anomalies": 1, "category": "mean"}
    row = one(summary, setting="hard", known_class="mean", **cell)
    assert row["auc_mean"] == pytest.approx(of_seed.mean())
    assert row["auc_std"] == pytest.approx(of_seed.std(ddof=0))
    assert row["n_seeds"] == 2
    assert row["seconds"] == 3.5
    general = own[own["setting"] == "general"]["auc"].mean()
    assert one(summary, setting="general", **cell)["auc_mean"] == pytest.approx(general)
    assert set(summary["known_class"][summary["setting"] == "general"]) == {""}


def test_recall_is_that_of_the_threshold_which_so_few_normals_exceed():
    rng = np.random.default_rng(0)
    for n_normals, rate, n_exceeding in ((100, 0.01, 1), (20, 0.05, 1), (60, 0.05, 3), (300, 0.05, 15)):
        normals, anomalies = rng.normal(size=n_normals), rng.normal(1.5, size=50)
        threshold = np.sort(normals)[::-1][n_exceeding]
        assert (normals > threshold).mean() <= rate
        assert recall_at(normals, anomalies, rate) == (anomalies > threshold).mean()
    assert recall_at(np.zeros(200), np.array([0.0, 1.0]), 0.05) == 0.5, "equal scores are not above it"


def test_recall_is_undefined_where_no_normal_may_exceed_the_threshold():
    """It was that of the highest normal: 12 normals had a recall at 1 % which was one at no false alarm at all."""
    anomalies = np.full(50, 9.0)
    assert np.isnan(recall_at(np.arange(99), anomalies, 0.01)) and not np.isnan(
        recall_at(np.arange(20), anomalies, 0.05)
    )
    scores = trial_scores({"MPFM": 1.0}, n_normals=40)
    row = one(summarise_setting(measure_trials(scores[scores["setting"] == "general"])), n_anomalies=10)
    assert np.isnan(row["recall_1_mean"]) and row["recall_5_mean"] > 0


def test_a_mean_over_categories_is_undefined_where_one_of_them_is():
    few = trial_scores({"MPFM": 1.0}, categories=("nut",), n_normals=10, numbers=(10,))
    many = trial_scores({"MPFM": 1.0}, categories=("tile",), n_normals=40, numbers=(10,))
    summary = summarise(measure_trials(pd.concat([few, many], ignore_index=True)))
    general = summary[summary["setting"] == "general"].set_index("category")
    assert general["recall_5_mean"].isna().to_dict() == {"nut": True, "tile": False, "mean": True}
    assert general["auc_mean"].notna().all()


def test_a_tested_class_is_measured_alone_and_never_known_in_the_hard_setting():
    scores = trial_scores({"MPFM": 1.0}, classes=("cut", "dent", "hole"), n_seeds=2, numbers=(10,))
    names = scores["sample"].drop_duplicates()
    samples = pd.DataFrame({"sample_id": names, "defect_class": names.str.split("/").str[1].replace("good", "")})
    table = summarise_tested_classes(scores, samples)
    hard = table[table["setting"] == "hard"]
    pairs = set(hard[["known_class", "tested_class"]].itertuples(index=False, name=None))
    classes = ["cut", "dent", "hole"]
    assert pairs == {(known, tested) for known in [*classes, "mean"] for tested in classes if known != tested}
    row = one(hard, known_class="cut", tested_class="hole")
    run = scores[(scores["run"] == "hard-cut-M10-seed1")]
    part = run[~run["sample"].str.contains("dent")]
    other = scores[(scores["run"] == "hard-cut-M10-seed0") & ~scores["sample"].str.contains("dent")]
    aucs = [roc_auc_score(own["label"], own["score"]) for own in (part, other)]
    assert (row["auc_mean"], row["n_test_anomalies_mean"]) == (pytest.approx(np.mean(aucs)), 15)
    general = table[table["setting"] == "general"]
    assert general["tested_class"].tolist() == classes and set(general["known_class"]) == {""}


def test_more_measures_come_after_the_columns_of_the_contract():
    scores = trial_scores({"MPFM": 1.0, "A": 0.5}, n_seeds=2)
    costs = trial_costs(scores)
    pixels = costs[costs["method"] == "MPFM"].drop(columns="seconds").assign(pixel_auroc=0.9, aupro=0.8, pixel_f1=0.4)
    pixels.loc[pixels["run"].str.contains("seed1"), "pixel_f1"] = 0.6
    metrics = measure_trials(scores, costs, pixels)
    assert metrics.columns.tolist()[-3:] == PIXELS
    assert metrics[PIXELS].isna().all(axis=1).tolist() == (metrics["method"] == "A").tolist()
    summary = summarise_setting(metrics[metrics["setting"] == "general"])
    assert summary.columns.tolist()[: len(CONTRACT)] == CONTRACT
    assert summary.columns.tolist()[len(CONTRACT) :: 2] == [f"{name}_mean" for name in [*PIXELS, *RECALLS]]
    row = one(summary, method="MPFM", n_anomalies=10)
    assert (row["pixel_f1_mean"], row["pixel_f1_std"]) == (pytest.approx(0.5), pytest.approx(0.1))
    hard = one(summarise(metrics), setting="hard", method="MPFM", n_anomalies=10, known_class="mean")
    assert (hard["aupro_mean"], hard["seconds"]) == (pytest.approx(0.8), 2.0)
    pd.testing.assert_frame_equal(summarise(reread(metrics)), summarise(metrics))
    stored = as_metrics(reread(summary))
    assert stored["pixel_f1_M10"] == pytest.approx(0.5) and "pixel_f1_M10_A" not in stored
    assert stored["recall_5_M1_A"] == one(summary, method="A", n_anomalies=1)["recall_5_mean"]


def reread(table: pd.DataFrame) -> pd.DataFrame:
    """As it comes back from its file."""
    with TemporaryDirectory() as folder:
        dataset = TablesDataset(folder, {"table": "table.csv"})
        dataset.save({"table": table})
        return dataset.load()["table"]


def test_without_masks_there_are_no_columns_of_pixels():
    scores = trial_scores({"MPFM": 1.0}, n_seeds=1)
    none = pd.DataFrame(columns=["setting", "run", "method", *PIXELS])
    metrics = measure_trials(scores, trial_costs(scores), none)
    pd.testing.assert_frame_equal(metrics, measure_trials(scores, trial_costs(scores)))


def test_a_mean_over_other_classes_than_those_of_the_rest_is_refused():
    scores = trial_scores({"MPFM": 1.0, "A": 0.5})
    lost = (scores["method"] == "A") & (scores["run"] == "hard-hole-M10-seed1")
    with pytest.raises(InputError, match=r"'A' has 1 of 2 runs in the hard setting with M=10, seed 1"):
        measure_trials(scores[~lost], trial_costs(scores))


def test_fewer_seeds_of_a_slow_method_are_no_error():
    scores = trial_scores({"MPFM": 1.0, "slow": 0.5})
    scores = scores[(scores["method"] == "MPFM") | (scores["seed"] == 0)]
    summary = summarise(measure_trials(scores, trial_costs(scores)))
    row = one(summary, method="slow", setting="hard", known_class="mean", n_anomalies=10)
    assert (row["n_seeds"], row["auc_std"]) == (1, 0)
    assert not np.isnan(row["auc_mean"])


def test_a_setting_is_summarised_as_in_a_study():
    scores = trial_scores({"MPFM": 1.0, "A": 0.5}, categories=("nut", "tile"), n_seeds=2)
    study = summarise(measure_trials(scores, trial_costs(scores)))
    for setting, part in measure_trials(scores).groupby("setting"):
        alone = summarise_setting(part)
        same = study[study["setting"] == setting][alone.columns].reset_index(drop=True)
        pd.testing.assert_frame_equal(alone, same)


def metrics(
    values: np.ndarray, classes: list[str], categories: tuple[str, ...] = ("",), numbers: tuple[int, ...] = (10,)
) -> pd.DataFrame:
    """AUC = values[category, class, seed], AP = half of it; the other method is at 0.5."""
    rows = []
    for i, category in enumerate(categories):
        for j, known in enumerate(classes):
            for seed in range(values.shape[2]):
                for number in numbers:
                    for method in METHODS:
                        auc = values[i, j, seed] if method == "MPFM" else 0.5
                        cell = {"dataset": "synthetic", "setting": "hard", "category": category, "method": method}
                        cell |= {"known_class": known, "n_anomalies": number, "seed": seed}
                        rows.append(cell | {"auc": auc, "ap": auc / 2, "seconds": 1.0})
    return pd.DataFrame(rows)


def cell(summary: pd.DataFrame, **where: object) -> pd.Series:
    for column, value in ({"method": "MPFM"} | where).items():
        summary = summary[summary[column] == value]
    (row,) = summary.to_dict("records")
    return pd.Series(row)


@given(st.integers(1, 3), st.integers(2, 4), st.integers(1, 5), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_means_over_classes_and_categories_and_their_spread(n_categories, n_classes, n_seeds, seed):
    values = np.random.default_rng(seed).uniform(size=(n_categories, n_classes, n_seeds))
    classes, categories = [f"class {j}" for j in range(n_classes)], ("nut", "tile", "wood")[:n_categories]
    summary = summarise_setting(metrics(values, classes, categories))
    assert summary.columns.tolist() == CONTRACT
    last = "mean" if n_categories > 1 else "nut"
    assert summary["category"].iloc[-1] == last and set(summary["category"]) == {*categories, last}
    mean = cell(summary, known_class="mean", category=last)
    assert mean["auc_mean"] == pytest.approx(values.mean())
    assert mean["auc_std"] == pytest.approx(values.mean(axis=(0, 1)).std())
    assert mean["ap_mean"] == pytest.approx(values.mean() / 2)
    assert mean["ap_std"] == pytest.approx(values.mean(axis=(0, 1)).std() / 2)
    assert mean["n_seeds"] == n_seeds
    for i, category in enumerate(categories):
        for j, known in enumerate(classes):
            row = cell(summary, known_class=known, category=category)
            assert row["auc_mean"] == pytest.approx(values[i, j].mean())
            assert row["auc_std"] == pytest.approx(values[i, j].std())
    assert cell(summary, method=METHODS[1], known_class="mean", category=last)["auc_mean"] == 0.5


def test_one_known_class_has_no_mean_over_classes():
    for known in ("", "dent"):
        summary = summarise_setting(metrics(np.array([[[0.7, 0.9]]]), [known], numbers=(10, 1)))
        assert set(summary["known_class"]) == {known}
        row = cell(summary, n_anomalies=1)
        assert (row["auc_mean"], row["auc_std"]) == (pytest.approx(0.8), pytest.approx(0.1))


def test_metrics_are_flat_means_and_an_undefined_one_is_absent():
    values = np.array([[[0.75], [0.25]], [[1.0], [0.5]]])
    table = metrics(values, ["dent", "hole"], categories=("nut", "tile"), numbers=(10, 1))
    table.loc[table["n_anomalies"] == 1, "ap"] = np.nan
    loaded = reread(summarise_setting(table))
    measured = {"auc_M10": 0.625, "ap_M10": 0.3125, "auc_M1": 0.625}
    unsupervised = {"auc_M10_unsupervised": 0.5, "ap_M10_unsupervised": 0.25, "auc_M1_unsupervised": 0.5}
    assert as_metrics(loaded) == measured | unsupervised
