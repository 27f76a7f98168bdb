"""What is done about repeated images: splits by group, dropping, results without them."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest

from evaluation.synthetic_trials import text_of
from mpfm_kedro.datasets.files import TablesDataset
from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.columns import RUN as RUN_COLUMNS
from mpfm_kedro.evaluation.measures import (
    WITHOUT_REPEATS,
    measure_trials,
    repeated_tests,
    summarise_setting,
    summarise_without_repeats,
)
from mpfm_kedro.parameters import IngestionParameters
from mpfm_kedro.pipelines.ingestion import refuse_wrong_split, split_normals
from mpfm_kedro.sources.repeats import DROPPED, LEAK, content, joined_items

PLAIN = IngestionParameters(allow_partial=True, max_unreadable_share=0, max_megapixels=1)
BY_ITEM, DROPPING = (PLAIN.model_copy(update={name: True}) for name in ("split_by_item", "drop_duplicates"))


def checked(items: list[str], contents: list[str] | None = None, dataset: str = "sdd") -> pd.DataFrame:
    """Normals of these items and contents, none of them alike unless said."""
    names = [f"{number:03}" for number in range(len(items))]
    columns = {"dataset": dataset, "label": 0} | dict.fromkeys(["category", "crop", "defect_class", "problem"], "")
    table = pd.DataFrame({"sample_id": names, "path": names, "item": items, "content_hash": contents or names})
    return table.assign(split="", dhash="", **columns)


def test_items_that_share_an_image_or_a_set_are_joined():
    samples = checked(list("aabbc"), ["1", "2", "2", "3", "4"])
    joined = joined_items(samples)
    assert joined.nunique() == 2
    assert joined.tolist() == list("aaaac")
    assert joined_items(samples, pd.Series(list("uvwxx"))).tolist() == list("aaaaa")


def test_unreadable_copies_join_no_items():
    samples = checked(list("ab"), ["1", "1"]).assign(problem="OSError")
    assert joined_items(samples).nunique() == 2


def test_items_stay_whole_and_are_split_3_to_1():
    samples = checked([f"item{number // 5}" for number in range(100)])
    divided = split_normals(samples, BY_ITEM)
    sides = divided.groupby("item")["split"].agg(set)
    assert all(len(side) == 1 for side in sides)
    assert sum(side == {"test"} for side in sides) == 5
    pd.testing.assert_frame_equal(divided, split_normals(samples, BY_ITEM))
    refuse_wrong_split(divided)


def test_split_by_item_does_not_depend_on_the_order_of_rows():
    samples = checked([f"item{number // 5}" for number in range(100)])
    shuffled = samples.sample(frac=1, random_state=0)
    pd.testing.assert_frame_equal(split_normals(shuffled, BY_ITEM).sort_index(), split_normals(samples, BY_ITEM))


def test_copies_stay_together_across_items():
    copies = [str(number % 20) for number in range(40)]
    divided = split_normals(checked([str(number) for number in range(40)], copies), BY_ITEM)
    assert (divided.groupby("content_hash")["split"].nunique() == 1).all()
    assert divided["content_hash"][divided["split"] == "test"].nunique() == 5


def test_plain_split_is_by_name():
    divided = split_normals(checked(["one", "two"] * 4), PLAIN)
    assert divided["split"].value_counts().to_dict() == {"train": 6, "test": 2}


def test_split_of_one_item_is_an_error():
    with pytest.raises(InputError, match=r"at least two normal items: all 8 normal images show kos01"):
        split_normals(checked(["kos01"] * 8), BY_ITEM)


def test_training_images_of_one_item_are_an_error():
    samples = checked(list("aaaab"), dataset="mastcam").assign(split=["train"] * 4 + ["test"])
    with pytest.raises(InputError, match="all normal images to train show a, at least 2 items are needed"):
        split_normals(samples, PLAIN)


def test_a_dataset_with_its_own_split_keeps_it_and_tests_no_item_that_trains(caplog):
    samples = checked(list("abcdde"), dataset="mastcam").assign(split=["train"] * 4 + ["test"] * 2)
    divided = split_normals(samples, BY_ITEM)
    assert divided["split"].tolist() == samples["split"].tolist()
    assert divided["problem"].tolist() == [""] * 4 + [LEAK, ""]
    assert "1 test images show items that train and are dropped, for example 004" in caplog.text
    assert (split_normals(samples, PLAIN)["problem"] == "").all()


def test_validator_refuses_what_is_neither_split():
    samples = checked([f"item{number // 5}" for number in range(100)])
    half = samples.assign(split=["train", "test"] * 50)
    with pytest.raises(InputError, match="50 to 50 normals is not a 3:1 split"):
        refuse_wrong_split(half)
    by_group = samples.assign(split=["train"] * 50 + ["test"] * 50)
    with pytest.raises(InputError, match="not a 3:1 split"):
        refuse_wrong_split(by_group)


def divided(contents: str, splits: list[str]) -> pd.DataFrame:
    samples = checked([str(number) for number in range(len(contents))], list(contents)).assign(split=splits)
    return samples.assign(label=(samples["split"] == "anomaly").astype(int))


def test_without_the_option_nothing_is_dropped():
    samples = divided("111212", ["train"] * 4 + ["test", "anomaly"])
    pd.testing.assert_frame_equal(split_normals(samples, PLAIN).drop(columns="item"), samples.drop(columns="item"))


def test_first_of_each_set_is_kept(caplog):
    samples = divided("112133456", ["train", "test", "test", "train", "anomaly", "anomaly"] + ["train"] * 3)
    dropped = split_normals(samples, DROPPING)
    assert dropped["sample_id"][dropped["problem"] == ""].tolist() == ["000", "002", "004", "006", "007", "008"]
    assert dropped["problem"][1] == f"{DROPPED}repeats 000"
    assert "dropped: 3 of 9: 001, 003, 005" in caplog.text
    pd.testing.assert_frame_equal(dropped.drop(columns=["problem", "item"]), samples.drop(columns=["problem", "item"]))


def test_copies_of_both_labels_are_all_dropped(caplog):
    dropped = split_normals(divided("1231456", ["train", "train", "test", "anomaly"] + ["train"] * 3), DROPPING)
    assert dropped["sample_id"][dropped["problem"] == ""].tolist() == ["001", "002", "004", "005", "006"]
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "000, 003" in errors[0]


def test_unreadable_images_are_left_as_they_are():
    samples = divided("112345", ["train"] * 5 + ["test"]).assign(problem=["broken"] + [""] * 5)
    assert split_normals(samples, DROPPING)["problem"].tolist() == ["broken"] + [""] * 5


def test_nothing_left_to_test_is_an_error():
    samples = divided("12341", ["train"] * 4 + ["test"])
    assert (split_normals(samples, PLAIN)["problem"] == "").all()
    with pytest.raises(InputError, match="sdd: 0 usable normal images to test, at least 1 are needed"):
        split_normals(samples, DROPPING)


@pytest.mark.parametrize("parameters", [PLAIN, DROPPING])
@pytest.mark.parametrize(
    ("broken", "message"), [(0, "sdd: 3 .* to train, at least 4"), (4, "sdd: 0 .* to test, at least 1")]
)
def test_unreadable_images_count_for_neither_side(broken, message, parameters):
    samples = divided("12345", ["train"] * 4 + ["test"])
    assert (split_normals(samples, parameters)["problem"] == "").all()
    samples.loc[broken, "problem"] = "broken"
    with pytest.raises(InputError, match=message):
        split_normals(samples, parameters)


def test_each_category_needs_its_own_normals():
    enough = divided("12345", ["train"] * 4 + ["test"]).assign(category="nut")
    few = divided("6789", ["train"] * 3 + ["test"]).assign(category="tile")
    with pytest.raises(InputError, match="sdd tile: 3 usable normal images to train, at least 4 are needed"):
        split_normals(pd.concat([enough, few], ignore_index=True), PLAIN)


RUN = {
    "run": "M2-seed0",
    "dataset": "sdd",
    "category": "",
    "setting": "general",
    "known_class": "",
    "n_anomalies": 2,
    "seed": 0,
    "train_normals": ["000", "001"],
    "known_anomalies": ["002"],
    "test_normals": ["003", "004", "005"],
    "test_anomalies": ["006", "007", "008"],
}


def scores(values: list[float]) -> pd.DataFrame:
    samples = RUN["test_normals"] + RUN["test_anomalies"]
    table = pd.DataFrame({"sample": samples, "label": [0, 0, 0, 1, 1, 1], "score": values})
    return table.assign(method="MPFM", **{name: RUN[name] for name in RUN_COLUMNS})


def test_repeats_of_training_of_known_anomalies_and_of_earlier_tests():
    samples = divided("123144256", ["train", "train", "anomaly"] + ["test"] * 3 + ["anomaly"] * 3)
    shown = content(samples).set_axis(samples["sample_id"])
    assert repeated_tests(RUN, shown) == {"003", "005", "006"}
    samples["content_hash"] = list("123145367")
    assert repeated_tests(RUN, content(samples).set_axis(samples["sample_id"])) == {"003", "006"}


def test_auc_without_repeats_is_that_of_the_other_images():
    samples = divided("123145678", ["train", "train", "anomaly"] + ["test"] * 3 + ["anomaly"] * 3)
    without = summarise_without_repeats(scores([0.0, 0.5, 0.6, 0.4, 0.7, 0.8]), pd.DataFrame([RUN]), samples)
    assert without["excluded"].tolist() == [1]
    np.testing.assert_allclose(without["auc_mean"], 4 / 6)
    assert list(without.columns) == WITHOUT_REPEATS


def test_one_remaining_label_has_no_auc():
    samples = divided("123112456", ["train", "train", "anomaly"] + ["test"] * 3 + ["anomaly"] * 3)
    without = summarise_without_repeats(scores([0.0] * 6), pd.DataFrame([RUN]), samples)
    assert without["auc_mean"].isna().all()
    assert without["excluded"].tolist() == [3]


@pytest.mark.parametrize("contents", ["123112456", "111111111"])
def test_undefined_auc_survives_its_file(contents, tmp_path):
    """Undefined where all test normals are excluded, or all test images."""
    samples = divided(contents, ["train", "train", "anomaly"] + ["test"] * 3 + ["anomaly"] * 3)
    two = pd.concat([scores([0.0] * 6), scores([0.1] * 6).assign(method="MPFM, no anomaly known")])
    dataset = TablesDataset(str(tmp_path), {"without_repeats": "without.csv"})
    dataset.save({"without_repeats": summarise_without_repeats(two, pd.DataFrame([RUN]), samples)})
    text = text_of(measure_trials(two), **dataset.load())
    assert text.splitlines()[-1].split()[-3:] == ["undefined", "undefined", "1"]


def test_without_repeats_there_is_no_second_table():
    samples = divided("123456789", ["train", "train", "anomaly"] + ["test"] * 3 + ["anomaly"] * 3)
    without = summarise_without_repeats(scores([0.0] * 6), pd.DataFrame([RUN]), samples)
    assert without.empty
    assert list(without.columns) == WITHOUT_REPEATS
    metrics = measure_trials(scores([0.0, 0.5, 0.6, 0.4, 0.7, 0.8]))
    summary = summarise_setting(metrics)
    assert text_of(metrics, without_repeats=without) == text_of(metrics)
    assert "3 per run" in text_of(metrics, without_repeats=summary.assign(excluded=3))
