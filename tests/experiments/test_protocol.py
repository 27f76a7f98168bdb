"""The run tables follow the protocol, and no test sample is ever among those that train."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.protocol import make_general_runs, make_hard_runs, make_study_runs, records


def table(classes: dict[str, int], n_train: int = 6, n_test: int = 2, category: str = "") -> pd.DataFrame:
    rows = [(f"good/{i:03}", "", "train", 0) for i in range(n_train)]
    rows += [(f"good/t{i:03}", "", "test", 0) for i in range(n_test)]
    rows += [(f"{name}/{i:03}", name, "anomaly", 1) for name, number in classes.items() for i in range(number)]
    samples = pd.DataFrame(rows, columns=["sample_id", "defect_class", "split", "label"])
    samples["sample_id"] = category + samples["sample_id"]
    return samples.assign(dataset="synthetic", category=category, problem="")


def anomalies(samples: pd.DataFrame) -> list[str]:
    return sorted(samples["sample_id"][samples["split"] == "anomaly"])


def test_general_pool_of_ten_and_the_same_test_set_for_one_and_ten():
    samples = table({"dent": 17, "hole": 14})
    runs = make_general_runs(samples, [10, 1], 5)
    assert len(runs) == 10
    for seed, part in runs.groupby("seed"):
        shuffled = np.random.default_rng(seed).permutation(anomalies(samples)).tolist()
        ten, one = part.set_index("n_anomalies").loc[[10, 1]].to_dict("records")
        assert ten["known_anomalies"] == shuffled[:10]
        assert one["known_anomalies"] == shuffled[:1]
        assert ten["test_anomalies"] == one["test_anomalies"] == sorted(shuffled[10:])
    assert runs["known_anomalies"].map(tuple).nunique() == 10
    assert set(runs["known_class"]) == {""}
    assert set(runs["setting"]) == {"general"}


def test_normals_of_a_run_are_those_of_the_split():
    samples = table({"dent": 30})
    for run in make_general_runs(samples, 10, 2).to_dict("records"):
        assert run["train_normals"] == [f"good/{i:03}" for i in range(6)]
        assert run["test_normals"] == ["good/t000", "good/t001"]


@pytest.mark.parametrize("make", [make_general_runs, lambda *args: make_hard_runs(args[0], "all", *args[1:])])
def test_order_of_the_sample_table_does_not_matter(make):
    samples = table({"dent": 15, "hole": 12})
    mixed = samples.sample(frac=1, random_state=3).reset_index(drop=True)
    pd.testing.assert_frame_equal(make(mixed, [1, 5], 2), make(samples, [1, 5], 2))


def test_more_than_ten_known_anomalies_are_a_larger_pool():
    run = make_general_runs(table({"dent": 50}), 20, 1).iloc[0]
    assert len(run["known_anomalies"]) == 20
    assert len(run["test_anomalies"]) == 30


@pytest.mark.parametrize(("available", "pool"), [(19, 9), (12, 6), (3, 1), (2, 1)])
def test_small_pool_shrinks_to_half_with_a_warning(available, pool, caplog):
    with caplog.at_level(logging.WARNING):
        runs = make_general_runs(table({"dent": available}), [2, 1], 1)
    assert f"drawn from {pool} of them" in caplog.text
    assert set(runs["test_anomalies"].map(len)) == {available - pool}
    assert runs["known_anomalies"].map(len).max() == min(2, pool)
    assert runs["n_anomalies"].tolist() == runs["known_anomalies"].map(len).tolist()


def test_twenty_anomalies_are_enough_for_the_whole_pool(caplog):
    runs = make_general_runs(table({"dent": 20}), 10, 1)
    assert len(runs["known_anomalies"].iloc[0]) == len(runs["test_anomalies"].iloc[0]) == 10
    assert caplog.text == ""


def test_a_number_above_half_of_the_anomalies_is_lowered_with_a_line(caplog):
    runs = make_general_runs(table({"dent": 24}), 13, 1)
    assert runs["n_anomalies"].tolist() == [12]
    assert "24 anomalies: known ones are drawn from 12 of them" in caplog.text


@pytest.mark.parametrize(("available", "known"), [(7, 3), (3, 1)])
def test_fewer_defects_than_wanted_are_known_by_half_and_said_once(available, known, caplog):
    runs = make_general_runs(table({"dent": available}), [10, 9, 8], 2)
    assert set(runs["n_anomalies"]) == {known}
    assert set(runs["test_anomalies"].map(len)) == {available - known}
    assert caplog.messages == [
        f"synthetic has only {available} anomalies: known ones are drawn from {known} of them, the others are tested"
    ]


@pytest.mark.parametrize(("available", "said"), [(0, "has no anomalies"), (1, "has one anomaly, which is tested")])
def test_without_anomalies_to_learn_from_there_are_runs_of_normals(available, said, caplog):
    samples = table({"dent": available} if available else {})
    runs = make_general_runs(samples, [10, 1], 2)
    assert runs["run"].tolist() == ["M0-seed0", "M0-seed1"]
    assert set(runs["n_anomalies"]) == {0}
    assert runs["known_anomalies"].tolist() == [[], []]
    assert runs["test_anomalies"].tolist() == [anomalies(samples)] * 2
    assert len(caplog.messages) == 1 and said in caplog.text
    grouped = make_general_runs(with_items(samples, samples["sample_id"].tolist()), 10, 1, group_split=True)
    assert grouped["test_anomalies"].tolist() == [anomalies(samples)]


def test_all_of_a_small_known_class_are_known(caplog):
    runs = make_hard_runs(table({"dent": 4, "hole": 12}), "dent", [10, 5, 1], 1)
    assert runs["n_anomalies"].tolist() == [4, 1]
    assert caplog.messages == ["class 'dent' of synthetic has only 4 anomalies, which are all known"]


def test_shrunk_pool_gives_no_run_twice():
    runs = make_general_runs(table({"dent": 10}), [10, 8, 1], 2)
    assert runs["run"].is_unique
    assert set(runs["n_anomalies"]) == {5, 1}


def test_the_same_number_given_twice_gives_no_run_twice():
    samples = table({"dent": 30, "hole": 30})
    assert make_general_runs(samples, [10, 10], 2)["run"].is_unique
    assert make_hard_runs(samples, "all", [10, 10], 2)["run"].is_unique


def test_hard_test_set_has_every_class_but_the_known_one():
    samples = table({"dent": 12, "hole": 10, "spot": 4})
    runs = make_hard_runs(samples, "all", [10, 1], 3)
    assert set(runs["known_class"]) == {"dent", "hole"}, "a class with fewer than ten samples is never the known one"
    assert len(runs) == 2 * 2 * 3
    for run in runs.to_dict("records"):
        own = [name for name in anomalies(samples) if name.startswith(run["known_class"])]
        drawn = np.random.default_rng(run["seed"]).permutation(own)[: run["n_anomalies"]].tolist()
        assert run["known_anomalies"] == drawn
        assert run["test_anomalies"] == [name for name in anomalies(samples) if name not in own]


def test_known_class_by_name_may_be_a_small_one():
    runs = make_hard_runs(table({"dent": 12, "spot": 4}), "spot", 3, 2)
    assert set(runs["known_class"]) == {"spot"}
    assert all(len(known) == 3 for known in runs["known_anomalies"])


def test_categories_have_their_own_runs(caplog):
    samples = pd.concat(
        [
            table({"dent": 12, "hole": 12}, category="nut/"),
            table({"dent": 12, "cut": 12}, category="tile/"),
            table({"defective": 12}, category="brush/"),
        ]
    )
    runs = make_hard_runs(samples, "all", 5, 1)
    assert sorted(zip(runs["category"], runs["known_class"], strict=True)) == [
        ("nut/", "dent"),
        ("nut/", "hole"),
        ("tile/", "cut"),
        ("tile/", "dent"),
    ]
    assert "Skipped: brush/ has 1 anomaly class" in caplog.text
    for run in runs.to_dict("records"):
        for column in ("train_normals", "known_anomalies", "test_normals", "test_anomalies"):
            assert all(name.startswith(run["category"]) for name in run[column])
    assert set(make_hard_runs(samples, "cut", 5, 1)["category"]) == {"tile/"}
    assert set(make_general_runs(samples, 5, 1)["category"]) == {"nut/", "tile/", "brush/"}
    assert runs["run"].is_unique
    assert not runs["run"].str.contains(r"[/\\ ]").any(), "a run's name is a file's name"


@pytest.mark.parametrize("samples", [table({"dent": 12}), table({})])
def test_fewer_than_two_classes_name_the_general_setting(samples):
    with pytest.raises(InputError, match="general_setting"):
        make_hard_runs(samples, "all", 1, 1)


def test_several_categories_of_one_class_each_name_the_general_setting():
    samples = pd.concat([table({"dent": 12}, category=category) for category in ("a/", "b/")])
    with pytest.raises(InputError, match="general_setting"):
        make_hard_runs(samples, "all", 1, 1)


def test_no_class_of_ten_is_an_error_that_shows_the_sizes():
    with pytest.raises(InputError, match="known_class") as raised:
        make_hard_runs(table({"dent": 9, "hole": 3}), "all", 1, 1)
    assert "9" in str(raised.value)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: make_hard_runs(table({"dent": 12, "hole": 11}), "all", 12, 1), ["n_anomalies", "12", "'hole'", "11"]),
        (
            lambda: make_hard_runs(table({"dent": 12, "hole": 11}), "dnet", 1, 1),
            ["known_class", "'dnet'", "dent, hole"],
        ),
        (lambda: make_general_runs(table({"dent": 12}), 13, 1), ["n_anomalies", "13", "12", "1 to 10 are allowed"]),
        (lambda: make_general_runs(table({"dent": 60}), 999, 1), ["n_anomalies", "999", "60", "1 to 30 are allowed"]),
        (lambda: make_hard_runs(table({"dent": 60, "hole": 2}), "dent", 999, 1), ["999", "60", "1 to 60 are allowed"]),
        (lambda: make_general_runs(table({}), 999, 1), ["n_anomalies", "999", "0 anomalies", "1 to 10 are allowed"]),
        (lambda: make_study_runs(table({}), "all", 1, 1), ["fewer than two", "general_setting"]),
    ],
)
def test_impossible_wishes_are_named(make, parts):
    with pytest.raises(InputError) as raised:
        make()
    assert all(part in str(raised.value) for part in parts)


SIZES = st.dictionaries(st.sampled_from(["cut", "dent", "hole", "spot"]), st.integers(1, 30), min_size=2)


@given(classes=SIZES, wanted=st.lists(st.integers(1, 12), min_size=1, max_size=2), n_seeds=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_no_sample_both_trains_and_tests(classes, wanted, n_seeds):
    samples = table(classes)
    made = []
    for make in (
        lambda: make_general_runs(samples, wanted, n_seeds),
        lambda: make_hard_runs(samples, "all", wanted, n_seeds),
    ):
        try:
            made.append(make())
        except InputError:
            continue
    for run in (row for runs in made for row in runs.to_dict("records")):
        trains = run["train_normals"] + run["known_anomalies"]
        tests = run["test_normals"] + run["test_anomalies"]
        assert not set(trains) & set(tests)
        assert len(set(trains)) == len(trains)
        assert len(set(tests)) == len(tests)
        assert run["known_anomalies"] or sum(classes.values()) < 2
        assert run["test_anomalies"]
        if run["setting"] == "hard":
            assert all(name.startswith(run["known_class"]) for name in run["known_anomalies"])
            assert not any(name.startswith(run["known_class"]) for name in run["test_anomalies"])


def test_a_study_has_the_runs_of_both_settings():
    samples = table({"dent": 25, "hole": 21})
    runs = make_study_runs(samples, "all", [10, 1], 2, 3)
    assert runs["run"].is_unique
    expected_runs = {"general": make_general_runs(samples, [10, 1], 2, 3)}
    expected_runs["hard"] = make_hard_runs(samples, "all", [10, 1], 2, 3)
    for setting, expected in expected_runs.items():
        own = runs[runs["setting"] == setting].reset_index(drop=True)
        pd.testing.assert_frame_equal(own, expected.assign(run=f"{setting}-" + expected["run"]))
    assert set(make_study_runs(table({"dent": 25}), "all", 10, 2, 0)["setting"]) == {"general"}


def test_run_table_comes_back_from_disk_as_it_was(tmp_path):
    runs = make_hard_runs(table({"dent": 12, "hole": 11}), "all", [1, 10], 2)
    runs.to_parquet(tmp_path / "runs.parquet")
    assert records(pd.read_parquet(tmp_path / "runs.parquet")) == records(runs)


def with_items(samples: pd.DataFrame, groups: list[str], contents: list[str] | None = None) -> pd.DataFrame:
    return samples.assign(group=groups, content_hash=contents or samples["sample_id"], crop="")


def sides(run: dict, item_of: dict[str, str]) -> tuple[set[str], set[str]]:
    """The items that a run learns from, and those that it tests."""
    learned = run["train_normals"] + run["known_anomalies"]
    return {item_of[name] for name in learned}, {item_of[name] for name in run["test_normals"] + run["test_anomalies"]}


@given(
    classes=SIZES,
    wanted=st.lists(st.integers(1, 12), min_size=1, max_size=2, unique=True),
    n_items=st.integers(5, 200),
    n_contents=st.integers(100, 2000),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30, deadline=None)
def test_no_item_is_on_both_sides_of_a_run_with_group_split(classes, wanted, n_items, n_contents, seed):
    samples = table(classes, n_train=20, n_test=10)
    rng = np.random.default_rng(seed)
    groups = [f"item{number}" for number in rng.integers(0, n_items, len(samples))]
    contents = [str(number) for number in rng.integers(0, n_contents, len(samples))]
    samples = with_items(samples, groups, contents)
    for make in (
        lambda split: make_general_runs(samples, wanted, 2, group_split=split),
        lambda split: make_hard_runs(samples, "all", wanted, 2, group_split=split),
    ):
        try:
            runs, plain = (records(make(split)) for split in (True, False))
        except InputError:
            continue
        for run, as_without in zip(runs, plain, strict=True):
            for names in (groups, contents):
                learned, tested = sides(run, dict(zip(samples["sample_id"], names, strict=True)))
                assert not learned & tested
            assert run["test_normals"]
            assert run["test_anomalies"]
            for column in ("run", "train_normals", "known_anomalies"):
                assert run[column] == as_without[column], "the draws are those without group_split"
            for column in ("test_normals", "test_anomalies"):
                assert set(run[column]) <= set(as_without[column])
        by_cell = pd.DataFrame(runs).groupby(["known_class", "seed"])
        if max(wanted) <= 10 and len(samples) - 30 >= 20:
            assert all(part["test_anomalies"].map(tuple).nunique() == 1 for _, part in by_cell), "the same for every M"


def test_group_split_excludes_tests_of_training_items_only():
    """Item a trains, b is tested, and c has a known anomaly, an anomaly and a normal."""
    samples = table({"dent": 20, "hole": 20}, n_train=2, n_test=3)
    pool = np.random.default_rng(0).permutation(anomalies(samples))[:10]
    group = pd.Series(samples["sample_id"].tolist(), index=samples["sample_id"])
    group[["good/000", "good/001"]] = "a"
    group[["good/t000", "good/t001"]] = "b"
    tested = [name for name in anomalies(samples) if name not in pool]
    group[[tested[0], tested[1]]] = "a"
    group[[pool[9], tested[2], "good/t002"]] = "c"
    for n_anomalies in (10, 1):
        (run,) = records(make_general_runs(with_items(samples, group.tolist()), n_anomalies, 1, group_split=True))
        assert run["known_anomalies"] == pool[:n_anomalies].tolist()
        assert run["test_normals"] == ["good/t000", "good/t001"]
        assert run["test_anomalies"] == tested[3:]


@pytest.mark.parametrize("kind", ["test_normals", "test_anomalies"])
def test_nothing_to_test_with_group_split_is_an_error(kind):
    samples = table({"dent": 12, "hole": 12})
    gone = samples["split"] == ("test" if kind == "test_normals" else "anomaly")
    groups = samples["sample_id"].where(~gone & (samples["sample_id"] != "good/000"), "one").tolist()
    for make in (make_general_runs, lambda *args, **more: make_hard_runs(args[0], "all", *args[1:], **more)):
        with pytest.raises(InputError, match=rf"group_split no sample remains for {kind}"):
            make(with_items(samples, groups), 5, 1, group_split=True)


def test_classes_whose_runs_would_have_one_name_are_refused():
    with pytest.raises(InputError, match="'a b', 'a_b'"):
        make_hard_runs(table({"a b": 10, "a_b": 10}), "all", 3, 1)
    assert "|" not in "".join(make_hard_runs(table({"a|b": 10, "c": 10}), "all", 3, 1)["run"])


def test_a_category_without_a_large_class_is_skipped_beside_others(caplog):
    samples = pd.concat([table({"dent": 12, "hole": 11}, category="a"), table({"dent": 3, "hole": 3}, category="b")])
    with caplog.at_level(logging.WARNING):
        runs = make_hard_runs(samples, "all", 3, 1)
    assert set(runs["category"]) == {"a"}
    assert "Skipped: b" in caplog.text
