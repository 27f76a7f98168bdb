"""Published figures are complete, and carry names that the sources know."""

import pytest

from evaluation.synthetic_trials import one
from mpfm_kedro.evaluation.measures import SUMMARY
from mpfm_kedro.evaluation.published import as_columns, load_published, load_published_ablation
from mpfm_kedro.sources import SOURCES, aitex, mastcam, mvtec_ad

PUBLISHED = ["mvtec_ad", "optical", "sdd", "aitex", "elpv", "mastcam", "hyper_kvasir", "brainmri", "headct"]
LISTED = {"aitex": set(aitex.CLASSES.values()), "mastcam": mastcam.PAPER_CLASSES}


def classes_of(dataset: str, category: str) -> set[str]:
    """The anomaly classes that a source names."""
    if dataset == "mvtec_ad":
        return set(mvtec_ad.CATEGORIES[category][1].split())
    if dataset in LISTED:
        return LISTED[dataset]
    return set(SOURCES[dataset].counts[category].anomalies)


@pytest.mark.parametrize("dataset", PUBLISHED)
def test_published_names_are_those_of_the_source(dataset):
    published = load_published(dataset)
    assert published.columns.tolist() == [*SUMMARY, "note"]
    assert set(published["method"].str.removesuffix(" (published)")) == {
        *("FLOS", "SAOE", "MLEP", "DRA", "AHL", "DPDL", "MPFM")
    }
    assert set(published["n_anomalies"]) == {1, 10}
    assert published["auc_mean"].between(0, 1).all()
    assert not published.duplicated(SUMMARY[:6]).any()
    assert set(published["category"]) - {"mean"} <= set(SOURCES[dataset].counts)
    hard = published[published["setting"] == "hard"]
    for category, part in hard.groupby("category"):
        assert set(part["known_class"]) - {"mean"} <= classes_of(dataset, category)
        assert "mean" in set(part["known_class"])
    assert set(published["known_class"][published["setting"] == "general"]) == {""}


def test_figures_of_the_paper():
    row = one(load_published("elpv"), method="MPFM (published)", setting="hard", known_class="mono", n_anomalies=10)
    assert (row["auc_mean"], row["auc_std"]) == (0.810, 0.008)
    row = one(load_published("mvtec_ad"), method="MPFM (published)", setting="general", category="mean", n_anomalies=10)
    assert (row["auc_mean"], row["auc_std"]) == (0.982, 0.003)


def test_a_dataset_that_was_not_published_has_no_rows():
    assert load_published("synthetic").empty
    assert load_published_ablation("synthetic").empty
    assert as_columns(load_published("synthetic")).empty


def test_published_differences_are_those_to_the_whole_method():
    figures = as_columns(load_published_ablation("elpv")).set_index("method")
    assert figures["published_difference"]["MPFM"] == 0
    assert figures["published_difference"]["without M_g"] == pytest.approx(0.946 - 0.962)
