"""Audit: problems of a dataset before anything is learned from it: repeats, leaks, unreadable files, imbalance."""

import logging
from typing import Any

import pandas as pd
from kedro.pipeline import Pipeline, node
from matplotlib.figure import Figure

from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.near import near_copies
from mpfm_kedro.pipelines.contact_sheets import draw_contact_sheet, draw_duplicate_sheet
from mpfm_kedro.sources.repeats import DROPPED, content, unreadable

logger = logging.getLogger(__name__)
REPEATED = ["set", "kind", "category", "split", "label", "defect_class", "sample_id", "path", "crop", "item"]
REPEATED += ["content_hash", "pixel_range", "problem"]
AUDIT = {"finding": "str", "where": "str", "sets": "Int64", "images": "Int64", "repeats": "Int64", "detail": "str"}
SPLITS = ["train", "test", "anomaly"]


def create_pipeline() -> Pipeline:
    """The stage that every setting shares."""
    written = ["repeated_images", "audit", "contact_sheet", "duplicate_sheet"]
    return Pipeline([node(audit_samples, ["samples", "images"], written, name="audit_samples", tags="audit")])


def audit_samples(samples: pd.DataFrame, images: ImageLoader) -> tuple[pd.DataFrame, pd.DataFrame, Figure, Figure]:
    """Repeated images, the table of findings, and contact sheets of the classes and of the repeated images."""
    repeated = find_repeats(samples)
    sheets = draw_contact_sheet(samples, images), draw_duplicate_sheet(repeated, images)
    return repeated, list_findings(samples, repeated), *sheets


def find_repeats(samples: pd.DataFrame) -> pd.DataFrame:
    """Sets of samples that show exactly or nearly the same, one row per member.

    Exact: the same file content and crop. Near: perceptual hashes that differ in few bits; such a set has at least
    two contents, and lists the exact copies of its members. Images of one colour are counted in the table of findings.
    """
    seen = samples[~unreadable(samples)].sort_values("sample_id")
    shown = content(seen)
    near = near_copies(seen)
    near = near[shown[near.index].groupby(near).transform("nunique") > 1]
    tables = []
    for kind, sets in (("exact", shown[shown.duplicated(keep=False)]), ("near", near)):
        number = pd.Series(sets.factorize()[0] + 1, sets.index).sort_values(kind="stable")
        tables.append(seen.loc[number.index].assign(set=f"{kind} " + number.astype(str), kind=kind))
    return pd.concat(tables, ignore_index=True).reindex(columns=REPEATED, fill_value="")


def list_findings(samples: pd.DataFrame, repeated: pd.DataFrame) -> pd.DataFrame:
    """One row per finding; where train and test share images, one line in the log.

    ``sets`` counts repeated images (or items), ``images`` their samples and ``repeats`` the copies among them: all
    but the first inside of a split, the tested ones across train and test, the anomalies across labels.
    """
    usable = samples["problem"] == ""
    items = samples.assign(set=samples["category"] + "|" + samples["item"])
    rows = [
        *_count_repeats(repeated[repeated["kind"] == "exact"], "exact duplicates"),
        *_count_repeats(repeated[repeated["kind"] == "near"], "near duplicates"),
        *(row for row in _count_repeats(items, "items") if row["where"].startswith("across")),
        *_count_states(samples),
        *_count_shapes(samples[~unreadable(samples)].drop_duplicates("path")),
        *_count_classes(samples[usable]),
    ]
    _log_leaks(repeated[repeated["sample_id"].isin(samples["sample_id"][usable])], items[usable])
    return pd.DataFrame(rows, columns=list(AUDIT)).fillna({"detail": ""}).astype(AUDIT)


def _count_repeats(members: pd.DataFrame, finding: str) -> list[dict[str, Any]]:
    n = pd.crosstab(members["set"], members["split"]).reindex(columns=SPLITS, fill_value=0)
    train, test, anomaly, total = n["train"], n["test"], n["anomaly"], n.sum(axis=1)
    classes = members[members["split"] == "anomaly"].groupby("set")["defect_class"].nunique()
    counted = {  # which sets count, with how many images, how many of them repeats
        "all": (total > 0, total, total - 1),
        **{f"within {split}": (n[split] > 1, n[split], n[split] - 1) for split in SPLITS},
        "across train and test": ((train > 0) & (test > 0), train + test, test),
        "across labels": ((train + test > 0) & (anomaly > 0), total, anomaly),
        "across classes": (classes.reindex(n.index, fill_value=0) > 1, anomaly, anomaly - 1),
    }
    return [
        {"finding": finding, "where": where, "sets": which.sum(), "images": images[which].sum()}
        | {"repeats": repeats[which].sum()}
        for where, (which, images, repeats) in counted.items()
    ]


def _count_states(samples: pd.DataFrame) -> list[dict[str, Any]]:
    broken, dropped = unreadable(samples), samples["problem"].str.startswith(DROPPED)
    plain = samples[~broken & (samples["dhash"] == "")]
    return [
        _with_example("unreadable", "all", samples[broken]),
        _with_example("dropped", "all", samples[dropped]),
        *(_with_example("one colour", split, plain[plain["split"] == split].assign(problem="")) for split in SPLITS),
    ]


def _with_example(finding: str, where: str, samples: pd.DataFrame) -> dict[str, Any]:
    detail = ""
    for name, problem in samples[["sample_id", "problem"]].head(1).itertuples(index=False):
        detail = f"for example {name}" + (f" ({problem})" if problem else "")
    return {"finding": finding, "where": where, "images": len(samples), "detail": detail}


def _count_shapes(files: pd.DataFrame) -> list[dict[str, Any]]:
    """Pixel formats and sizes of the files, not of the crops."""
    rows = [
        _with_example("pixel format", str(name), part.assign(problem=""))
        for name, part in files.groupby("pixel_format")
    ]
    sizes = files[["width", "height"]].drop_duplicates()
    sizes = sizes.loc[(sizes["width"] * sizes["height"]).sort_values(kind="stable").index]
    named = [f"{width} x {height}" for width, height in sizes.itertuples(index=False)]
    detail = f"from {named[0]} to {named[-1]}" if len(named) > 1 else "".join(named)
    return [*rows, {"finding": "sizes", "where": "all", "sets": len(named), "images": len(files), "detail": detail}]


def _count_classes(usable: pd.DataFrame) -> list[dict[str, Any]]:
    """Usable samples by category, split and class."""
    name = usable["defect_class"].where(usable["label"] == 1, "normal, " + usable["split"])
    name = (usable["category"] + ": ").where(usable["category"] != "", "") + name
    counts = usable.groupby(["category", "label", name.rename("name")]).size().reset_index(name="images")
    return [
        {"finding": "class", "where": where, "images": n, "detail": f"{n / len(usable):.1%}"}
        for where, n in zip(counts["name"], counts["images"], strict=True)
    ]


def _log_leaks(repeated: pd.DataFrame, items: pd.DataFrame) -> None:
    """One line where train and test share images or items, one for each image of contradictory labels.

    Near copies of contradictory labels share a line: many defects are small.
    """
    exact = repeated[repeated["kind"] == "exact"]
    near = repeated[repeated["kind"] == "near"]
    shared = {"exact copies": _shared(exact), "near copies": _shared(near), "parts of one item": _shared(items)}
    if any(shared.values()):
        logger.warning(
            "Train and test share %s, for example %s: results on them are optimistic; ingestion.split_by_item=true "
            "keeps an item and its copies on one side",
            ", ".join(f"{name} ({len(sets)})" for name, sets in shared.items() if sets),
            next(sets[0] for sets in shared.values() if sets),
        )
    for name, part in exact.groupby("set", sort=False):
        if part["label"].nunique() > 1:
            logger.error("The same image is normal and anomalous (%s): %s", name, ", ".join(part["sample_id"]))
    if contradictory := _shared(near, "label"):
        message = "Nearly the same image is normal and anomalous (%d, see duplicate_sheet.png), for example %s"
        logger.warning(message, len(contradictory), contradictory[0])


def _shared(members: pd.DataFrame, by: str = "split") -> list[str]:
    """The sets that have normals in train and in test, or members of both labels: one of each."""
    compared = members if by == "label" else members[members["split"] != "anomaly"]
    first = compared.drop_duplicates(["set", by])
    first = first[first["set"].duplicated(keep=False)]
    return first.groupby("set", sort=False)["sample_id"].agg(" = ".join).tolist()
