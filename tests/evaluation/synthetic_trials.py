"""Synthetic trials: tables of scores and costs in the columns that evaluation reads."""

import numpy as np
import pandas as pd

from mpfm_kedro.evaluation.columns import PART_COLUMNS, SCORES
from mpfm_kedro.evaluation.intervals import DIFFERENCES
from mpfm_kedro.evaluation.measures import TESTED, WITHOUT_REPEATS, summarise_setting
from mpfm_kedro.reports.setting import write_summary


def trial_scores(
    strength: dict[str, float],
    classes: tuple[str, ...] = ("dent", "hole"),
    categories: tuple[str, ...] = ("",),
    numbers: tuple[int, ...] = (10, 1),
    n_seeds: int = 3,
    n_normals: int = 40,
    n_anomalies: int = 15,
    dataset: str = "synthetic",
    rng_seed: int = 0,
) -> pd.DataFrame:
    """Scores of every method: noise, and ``strength`` on top for anomalies.

    General runs exclude two anomalies that depend on the seed. There are hard runs for each of ``classes``, which
    exclude the class, if there are two or more.
    """
    rng = np.random.default_rng(rng_seed)
    tables = []
    for category in categories:
        normals = [f"{category}/good/{i}" for i in range(n_normals)]
        of_class = {name: [f"{category}/{name}/{i}" for i in range(n_anomalies)] for name in classes}
        everything = [sample for samples in of_class.values() for sample in samples]
        for known in ["", *(classes if len(classes) > 1 else ())]:
            for number in numbers:
                for seed in range(n_seeds):
                    anomalies = [sample for sample in everything if sample not in of_class.get(known, [])]
                    if not known:
                        anomalies = sorted(np.random.default_rng(seed).permutation(anomalies)[2:])
                    setting = "hard" if known else "general"
                    run = {
                        "run": "-".join(filter(None, [setting, category, known, f"M{number}-seed{seed}"])),
                        "dataset": dataset,
                        "category": category,
                        "setting": setting,
                        "known_class": known,
                        "n_anomalies": number,
                        "seed": seed,
                    }
                    label = np.repeat([0, 1], [len(normals), len(anomalies)])
                    for method, gain in strength.items():
                        table = pd.DataFrame(run | {"method": method, "sample": normals + anomalies, "label": label})
                        table["score"] = rng.normal(size=len(table)) + gain * label
                        table[PART_COLUMNS] = np.nan
                        table["mode"] = np.arange(len(table)) % 2 if method == "MPFM" else -1
                        tables.append(table)
    return pd.concat(tables, ignore_index=True)[SCORES]


def trial_costs(scores: pd.DataFrame, seconds: float = 2.0) -> pd.DataFrame:
    """The same seconds for every trial."""
    return scores[["method", "run", "setting"]].drop_duplicates().assign(seconds=seconds)


def evaluated(metrics: pd.DataFrame, **more: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tables of a setting; without ``more``, there are neither differences nor repeats nor several classes."""
    columns = {"differences": DIFFERENCES, "without_repeats": WITHOUT_REPEATS, "tested_classes": TESTED}
    empty = {name: pd.DataFrame(columns=names) for name, names in columns.items()}
    return {"run_metrics": metrics, "summary": summarise_setting(metrics), **empty, **more}


def text_of(metrics: pd.DataFrame, **more: pd.DataFrame) -> str:
    """The summary for the terminal."""
    return write_summary(evaluated(metrics, **more))


def one(table: pd.DataFrame, **where: object) -> dict:
    """The only row with these values."""
    for column, value in where.items():
        table = table[table[column] == value]
    (row,) = table.to_dict("records")
    return row
