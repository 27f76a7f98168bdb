"""Problems of a dataset, before anything is learned from it: repeats, leaks, unreadable files, imbalance."""

from __future__ import annotations

import logging
from typing import Any

import pandas as pd

from mpfm_kedro.images.near import near_sets
from mpfm_kedro.sources.repeats import DROPPED, content, unreadable

logger = logging.getLogger(__name__)
REPEATED = ["set", "kind", "category", "split", "label", "defect_class", "sample_id", "path", "crop", "group"]
REPEATED += ["content_hash", "pixel_range", "problem"]
AUDIT = ["finding", "where", "sets", "images", "repeats", "detail"]
SPLITS = ["train", "test", "anomaly"]


def find_repeats(samples: pd.DataFrame) -> pd.DataFrame:
    """Sets of samples that show exactly or nearly the same, one row per member.

    Exact: the same file content and crop. Near: perceptual hashes that differ in few bits; such a set has at least
    two contents, and lists the exact copies of its members. Images of one colour are counted in the audit table.
    """
    seen = samples[~unreadable(samples)].sort_values("sample_id")
    shown = content(seen)
    exact = shown[shown.duplicated(keep=False)]
    near = []
    for _, part in seen[seen["dhash"] != ""].groupby("category"):
        alike = pd.Series(near_sets(part["dhash"].tolist()), index=part.index)
        contents = shown[part.index].groupby(alike).transform("nunique")
        near.append(part["category"][contents > 1] + "|" + alike[contents > 1].astype(str))
    tables = [_members(seen, exact, "exact"), *(_members(seen, sets, "near") for sets in near)]
    repeated = pd.concat(tables, ignore_index=True)
    repeated["set"] = repeated["kind"] + " " + _numbers(repeated).astype(str)
    return repeated.reindex(columns=REPEATED, fill_value="")


def _members(samples: pd.DataFrame, sets: pd.Series, kind: str) -> pd.DataFrame:
    """The samples of some sets, set by set in the order of their first members."""
    members = samples.loc[sets.index].assign(set=sets, kind=kind)
    return members.iloc[pd.Series(members["set"].factorize()[0]).argsort(kind="stable")]


def _numbers(repeated: pd.DataFrame) -> pd.Series:
    """1, 2, 3 … for the sets of each kind, in the order of the rows."""
    new = ~repeated.duplicated(["kind", "set"])
    return new.groupby(repeated["kind"]).cumsum()


def audit_samples(samples: pd.DataFrame, repeated_images: pd.DataFrame) -> pd.DataFrame:
    """One row per finding; where train and test share images, one line in the log.

    ``sets`` counts repeated images (or groups), ``images`` their samples and ``repeats`` the copies among them: all
    but the first inside of a split, the tested ones across train and test, the anomalies across labels.
    """
    rows: list[dict[str, Any]] = []
    for kind in ("exact", "near"):
        rows += _repeat_rows(repeated_images[repeated_images["kind"] == kind], f"{kind} duplicates")
    groups = samples.assign(set=samples["category"] + "|" + samples["group"])
    rows += [row for row in _repeat_rows(groups, "groups") if row["where"].startswith("across")]
    rows += _state_rows(samples)
    rows += _shape_rows(samples)
    rows += _class_rows(samples)
    usable = samples["problem"] == ""
    _log_leaks(repeated_images[repeated_images["sample_id"].isin(samples["sample_id"][usable])], groups[usable])
    table = pd.DataFrame(rows, columns=AUDIT).astype({"sets": "Int64", "images": "Int64", "repeats": "Int64"})
    return table.fillna({"detail": ""})


def _repeat_rows(members: pd.DataFrame, finding: str) -> list[dict[str, Any]]:
    n = pd.crosstab(members["set"], members["split"]).reindex(columns=SPLITS, fill_value=0)
    normals = n["train"] + n["test"]
    rows = [_row(finding, "all", n.sum(axis=1), n.sum(axis=1) - 1)]
    rows += [_row(finding, f"within {split}", n[split][n[split] > 1], n[split] - 1) for split in SPLITS]
    shared = n[(n["train"] > 0) & (n["test"] > 0)]
    rows.append(_row(finding, "across train and test", shared["train"] + shared["test"], n["test"]))
    shared = n[(normals > 0) & (n["anomaly"] > 0)]
    rows.append(_row(finding, "across labels", shared.sum(axis=1), n["anomaly"]))
    anomalies = members[members["split"] == "anomaly"].groupby("set")["defect_class"]
    shared = n[n.index.isin(anomalies.nunique().loc[lambda classes: classes > 1].index)]
    rows.append(_row(finding, "across classes", shared["anomaly"], n["anomaly"] - 1))
    return rows


def _row(finding: str, where: str, images: pd.Series, repeats: pd.Series) -> dict[str, Any]:
    """``images`` has the sets that count."""
    numbers = {"sets": len(images), "images": int(images.sum()), "repeats": int(repeats[images.index].sum())}
    return {"finding": finding, "where": where, **numbers}


def _state_rows(samples: pd.DataFrame) -> list[dict[str, Any]]:
    broken = unreadable(samples)
    dropped = samples["problem"].str.startswith(DROPPED)
    plain = samples[~broken & (samples["dhash"] == "")]
    return [
        _example("unreadable", "all", samples[broken], "problem"),
        _example("dropped", "all", samples[dropped], "problem"),
        *(_example("one colour", split, plain[plain["split"] == split]) for split in SPLITS),
    ]


def _example(finding: str, where: str, samples: pd.DataFrame, column: str | None = None) -> dict[str, Any]:
    detail = ""
    if len(samples):
        reason = f" ({samples[column].iloc[0]})" if column else ""
        detail = f"for example {samples['sample_id'].iloc[0]}{reason}"
    return {"finding": finding, "where": where, "images": len(samples), "detail": detail}


def _shape_rows(samples: pd.DataFrame) -> list[dict[str, Any]]:
    """Pixel formats and sizes of the files, not of the crops."""
    files = samples[~unreadable(samples)].drop_duplicates("path")
    rows = [_example("pixel format", str(name), part) for name, part in files.groupby("pixel_format")]
    sizes = files[["width", "height"]].drop_duplicates()
    sizes = sizes.loc[(sizes["width"] * sizes["height"]).sort_values(kind="stable").index]
    named = [f"{width} x {height}" for width, height in sizes.itertuples(index=False)]
    detail = f"from {named[0]} to {named[-1]}" if len(named) > 1 else "".join(named)
    rows.append({"finding": "sizes", "where": "all", "sets": len(named), "images": len(files), "detail": detail})
    return rows


def _class_rows(samples: pd.DataFrame) -> list[dict[str, Any]]:
    """Usable samples by category, split and class."""
    usable = samples[samples["problem"] == ""]
    name = usable["defect_class"].where(usable["label"] == 1, "normal, " + usable["split"])
    name = (usable["category"] + ": ").where(usable["category"] != "", "") + name
    order = pd.DataFrame({"name": name, "category": usable["category"], "label": usable["label"]})
    counts = order.groupby(["category", "label", "name"]).size().reset_index(name="images")
    return [
        {"finding": "class", "where": name, "images": n, "detail": f"{n / len(usable):.1%}"}
        for name, n in zip(counts["name"], counts["images"], strict=True)
    ]


def _log_leaks(repeated: pd.DataFrame, groups: pd.DataFrame) -> None:
    """One line where train and test share images or groups, one for each image of contradictory labels."""
    exact, near = (_shared(repeated[repeated["kind"] == kind]) for kind in ("exact", "near"))
    items = _shared(groups)
    if exact or near or items:
        counts = {"exact copies": exact, "near copies": near, "parts of one item": items}
        logger.warning(
            "Train and test share %s, for example %s: results on them are optimistic; see ingestion.drop_duplicates "
            "and ingestion.group_split",
            ", ".join(f"{name} ({len(found)})" for name, found in counts.items() if found),
            (exact + near + items)[0],
        )
    for name, part in repeated[repeated["kind"] == "exact"].groupby("set", sort=False):
        if part["label"].nunique() > 1:
            logger.error("The same image is normal and anomalous (%s): %s", name, ", ".join(part["sample_id"]))


def _shared(members: pd.DataFrame) -> list[str]:
    """The sets that have members in train and in test: one of each."""
    first = members[members["split"] != "anomaly"].drop_duplicates(["set", "split"])
    first = first[first["set"].duplicated(keep=False)]
    return first.groupby("set", sort=False)["sample_id"].agg(" = ".join).tolist()
