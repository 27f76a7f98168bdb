"""The run table: which samples train and which test, for every cell of an experiment.

With ``split_by_item`` no item (a commutator, a piece of fabric, an image and its copies) is on both sides of a run. The
draws stay as they are without it; then every test sample whose item is among the run's training normals or its pool of
known anomalies leaves the test set. So an anomaly of a training item may be known and is never tested, and the test
set is still the same for every M up to ten. Cross-fitting leaves out what a run tests: whole items there, else images.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import AUTO, ProtocolParameters
from mpfm_kedro.sources import splits_by_item

logger = logging.getLogger(__name__)
POOL = 10
PRODUCTION, LEARNING = "production", "learning"
MIN_CLASS_SIZE = 10
Items = Mapping[str, str]


class NoHardSettingError(InputError):
    """There are fewer than two classes of anomalies, or none is large enough to be the known one."""


def make_general_runs(samples: pd.DataFrame, protocol: ProtocolParameters) -> pd.DataFrame:
    """General setting: known anomalies drawn from all classes.

    All anomalies are shuffled with the run's seed; the first ten are the pool that the known ones come from. The
    anomalies outside the pool are tested, so the test set is the same for every M up to ten. Without anomalies, or with
    a single one, M is 0: there are only normals to learn from.
    """
    rows = []
    items = _items(samples, protocol)
    for category, part in _readable(samples).groupby("category"):
        anomalies, name = _ids(part, "anomaly"), str(category) or str(part["dataset"].iloc[0])
        pools: dict[int, int] = {}  # by M; a pool that shrinks can make two of them one
        numbers = list(dict.fromkeys(protocol.n_anomalies))
        for wanted in numbers:
            pool = _pool_size(len(anomalies), wanted, name)
            pools.setdefault(min(wanted, pool), pool)
        _report_few(len(anomalies), max(numbers), max(pools.values()), name)
        for known, pool in pools.items():
            for seed in _seeds(protocol):
                shuffled = np.random.default_rng(seed).permutation(anomalies)
                rows.append(_run(part, "general", "", known, seed, shuffled[:pool], shuffled[pool:], items))
    return _run_table(rows)


def make_hard_runs(samples: pd.DataFrame, protocol: ProtocolParameters) -> pd.DataFrame:
    """Hard setting: known anomalies of one class, tested on all the other classes.

    Each class with at least ten samples is the known one in turn, or only ``known_class``; the whole known class
    leaves the test set.

    Raises:
        NoHardSettingError: There are no two classes of anomalies, or no class is large enough.
    """
    rows = []
    items = _items(samples, protocol)
    several = samples["category"].nunique() > 1
    for category, part in _readable(samples).groupby("category"):
        name = str(category) or str(part["dataset"].iloc[0])
        try:
            known_classes = _known_classes(part, protocol.known_class, name)
        except NoHardSettingError as error:
            if not several:
                raise
            logger.warning("Skipped: %s", error)
            continue
        for known in known_classes:
            own = _ids(part[part["defect_class"] == known], "anomaly")
            others = _ids(part[part["defect_class"] != known], "anomaly")
            for wanted in _known_numbers(protocol.n_anomalies, len(own), f"class '{known}' of {name}"):
                for seed in _seeds(protocol):
                    pool = np.random.default_rng(seed).permutation(own)[: max(POOL, wanted)]
                    rows.append(_run(part, "hard", known, wanted, seed, pool, others, items))
    if not rows and protocol.known_class == "all":
        raise NoHardSettingError(
            "No category has two anomaly classes, which the hard setting needs: use general_setting"
        )
    if not rows:
        raise InputError(
            f"Parameter 'known_class' = '{protocol.known_class}': no category has that class; "
            f"there are: {', '.join(sorted(set(samples['defect_class']) - {''}))}"
        )
    return _run_table(rows)


def make_study_runs(samples: pd.DataFrame, settings: Mapping[str, ProtocolParameters]) -> pd.DataFrame:
    """The runs of some settings; a hard setting that does not exist is skipped where there is another one."""
    if (_readable(samples)["split"] == "anomaly").sum() < 2:
        raise InputError(
            "A study compares methods on anomalies, of which there are fewer than two: use general_setting"
        )
    tables = []
    if "general" in settings:
        tables.append(make_general_runs(samples, settings["general"]))
    if "hard" in settings:
        try:
            tables.append(make_hard_runs(samples, settings["hard"]))
        except NoHardSettingError as error:
            if not tables:
                raise
            logger.warning("General setting only: %s", error)
    runs = pd.concat(tables, ignore_index=True)
    return runs.assign(run=runs["setting"] + "-" + runs["run"])


def make_production_run(samples: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The one run of a production model: it learns from all normals and all anomalies, and nothing is tested.

    Raises:
        InputError: There are several categories; each needs a model of its own.
    """
    readable = _readable(samples)
    categories = sorted(readable["category"].unique())
    if len(categories) > 1:
        names = ", ".join(categories)
        raise InputError(f"A model is for one category: choose one with --params=category=…; there are {names}")
    known = _ids(readable, "anomaly")
    run = _run(readable, PRODUCTION, "", len(known), seed, known, [], None)
    return _run_table([run | {"run": PRODUCTION, "by_item": True}])  # new images are of new items


def make_learning_runs(samples: pd.DataFrame, learned: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The general setting before and after some images were learned, both tested on the same images.

    No image of a learned item (sample_id, label, item) is tested; the seed draws the other known anomalies.
    """
    one = ProtocolParameters(known_class="all", n_anomalies=[POOL], n_seeds=1, first_seed=seed, split_by_item=AUTO)
    (before,) = records(make_general_runs(samples, one))
    items, taken = samples.set_index("sample_id")["item"], set(learned["item"])
    kinds = ("test_normals", "test_anomalies", "train_normals", "known_anomalies")
    without = before | {kind: [sample for sample in before[kind] if items[sample] not in taken] for kind in kinds}
    normal = learned["label"] == 0
    after = without | {
        "train_normals": [*without["train_normals"], *learned["sample_id"][normal]],
        "known_anomalies": [*without["known_anomalies"], *learned["sample_id"][~normal]],
    }
    rows = []
    for name, run in {"before": without, "after": after}.items():
        known = {"n_anomalies": len(run["known_anomalies"]), "known_class": name}
        rows.append(run | known | {"run": name, "setting": LEARNING})
    return _run_table(rows)


def _run_table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """One row per run; their names must differ."""
    runs = pd.DataFrame(rows)
    for name, own in runs.groupby("run"):
        if len(own) > 1:
            classes = ", ".join(f"'{known}'" for known in own["known_class"])
            raise InputError(f"The classes {classes} give runs of one name, {name}: rename a class")
    return runs


def records(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a run table, sample lists as lists."""
    rows = runs.to_dict("records")
    return [{str(k): list(v) if isinstance(v, np.ndarray) else v for k, v in row.items()} for row in rows]


def _items(samples: pd.DataFrame, protocol: ProtocolParameters) -> Items | None:
    """The item of each sample, where no item may be on both sides."""
    by_item = splits_by_item(samples, protocol.split_by_item)
    return dict(zip(samples["sample_id"], samples["item"], strict=True)) if by_item else None


def _readable(samples: pd.DataFrame) -> pd.DataFrame:
    return samples[samples["problem"] == ""].sort_values("sample_id")


def _ids(samples: pd.DataFrame, split: str) -> list[str]:
    return samples["sample_id"][samples["split"] == split].tolist()


def _seeds(protocol: ProtocolParameters) -> range:
    return range(protocol.first_seed, protocol.first_seed + protocol.n_seeds)


def _pool_size(available: int, wanted: int, name: str) -> int:
    """Ten, or as many as are known; half of the anomalies where there are fewer than twice that."""
    if wanted > max(POOL, available):
        raise InputError(
            f"Parameter 'n_anomalies' = {wanted}: {name} has {available} anomalies, of which half can be known and the "
            f"others are tested; 1 to {max(POOL, available // 2)} are allowed"
        )
    pool = max(POOL, wanted)
    return pool if available >= 2 * pool else available // 2


def _report_few(available: int, wanted: int, pool: int, name: str) -> None:
    if not available:
        logger.warning("%s has no anomalies: MPFM learns from normals alone, and AUC and AP are undefined", name)
    elif not pool:
        logger.warning("%s has one anomaly, which is tested: MPFM learns from normals alone", name)
    elif available < 2 * max(POOL, wanted):
        message = "%s has only %d anomalies: known ones are drawn from %d of them, the others are tested"
        logger.warning(message, name, available, pool)


def _known_numbers(wanted: list[int], available: int, name: str) -> list[int]:
    """The numbers M of known anomalies of one class; up to ten may be more than the class has."""
    if max(wanted) > max(POOL, available):
        raise InputError(
            f"Parameter 'n_anomalies' = {max(wanted)}: {name} has {available}; 1 to {max(POOL, available)} are allowed"
        )
    if max(wanted) > available:
        logger.warning("%s has only %d anomalies, which are all known", name, available)
    return list(dict.fromkeys(min(number, available) for number in wanted))


def _known_classes(part: pd.DataFrame, known_class: str, name: str) -> list[str]:
    sizes = part["defect_class"][part["split"] == "anomaly"].value_counts()
    if len(sizes) < 2:
        raise NoHardSettingError(
            f"{name} has {len(sizes)} anomaly class(es); the hard setting needs two: use general_setting"
        )
    if known_class != "all":
        return [known_class] if known_class in sizes.index else []
    large = sorted(sizes.index[sizes >= MIN_CLASS_SIZE])
    if not large:
        raise NoHardSettingError(
            f"{name}: no anomaly class has {MIN_CLASS_SIZE} samples ({dict(sizes)}): "
            "name one with known_class, or use general_setting"
        )
    return large


def _run(
    part: pd.DataFrame,
    setting: str,
    known_class: str,
    n_anomalies: int,
    seed: int,
    pool: Any,
    tested: Iterable[str],
    items: Items | None,
) -> dict[str, Any]:
    """One run; its known anomalies are the first ``n_anomalies`` of the pool."""
    dataset, category = str(part["dataset"].iloc[0]), str(part["category"].iloc[0])
    name = "-".join([*filter(None, [category, known_class]), f"M{n_anomalies}", f"seed{seed}"])
    train_normals = _ids(part, "train")
    tests = {"test_normals": _ids(part, "test"), "test_anomalies": sorted(tested)}
    if items is not None:
        tests = _of_other_items(tests, [*train_normals, *pool], items, f"{dataset}, {setting} run {name}")
    return {
        "run": re.sub(r"[/| ]", "_", name),
        "dataset": dataset,
        "category": category,
        "setting": setting,
        "known_class": known_class,
        "n_anomalies": n_anomalies,
        "seed": seed,
        "by_item": items is not None,
        "train_normals": train_normals,
        "known_anomalies": list(pool[:n_anomalies]),
        **tests,
    }


def _of_other_items(
    tests: dict[str, list[str]], learned: Iterable[str], items: Items, name: str
) -> dict[str, list[str]]:
    """The test samples of items that the run does not learn from."""
    taken = {items[sample] for sample in learned}
    kept = {kind: [sample for sample in samples if items[sample] not in taken] for kind, samples in tests.items()}
    for kind, remaining in kept.items():
        if tests[kind] and not remaining:
            raise InputError(
                f"{name}: with ingestion.split_by_item no sample remains for {kind}: all {len(tests[kind])} show items "
                "that are among the training normals or the pool of known anomalies"
            )
    return kept
