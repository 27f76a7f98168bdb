"""Ingestion: from raw files to the sample table with its split."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from kedro.pipeline import Pipeline, node

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.items import join_images, list_items, match_items
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.ranges import find_range
from mpfm_kedro.parameters import AUTO, IngestionParameters
from mpfm_kedro.sources import get_source, source_of, splits_by_item
from mpfm_kedro.sources.repeats import DROPPED, LEAK, content

logger = logging.getLogger(__name__)
PLAIN_FORMATS = {"L", "RGB"}
PIXEL_FORMATS = {"1": "one bit", "P": "P (palette)", "RGBA": "RGBA (with transparency)"}
OWN = "folder"
TEST_SHARE = 0.25
MIN_NORMALS = {"train": 4, "test": 1}
MAX_NAMES = 40


def create_pipeline() -> Pipeline:
    """The stage that every setting shares."""
    listing = ["images", "params:category", "params:ingestion", "params:name"]
    checking = ["listed_samples", "images", "params:ingestion"]
    nodes = [
        node(list_samples, listing, "listed_samples", name="list_samples"),
        node(check_images, checking, "checked_samples", name="check_images"),
        node(split_normals, ["checked_samples", "params:ingestion"], "samples", name="split_normals"),
    ]
    return Pipeline(nodes, tags="ingestion")


def list_samples(images: ImageLoader, category: str, parameters: IngestionParameters, name: str = OWN) -> pd.DataFrame:
    """List the samples of the dataset and compare their numbers with the published ones; own images get a name."""
    source = get_source(images.dataset)
    samples = source.list_samples(images.folder)
    _refuse_outside(samples, images.folder)
    if source.name == OWN:
        samples = list_items(samples.assign(dataset=name), images.folder, parameters.item_pattern)
        if others := images.other_folders():
            message = "Results named '%s' were of %s before and are replaced; --params=name=… gives these another name"
            logger.warning(message, name, others[0])
    categories = sorted(samples["category"].unique())
    if category != "all":
        if category not in categories:
            raise InputError(f"Unknown category '{category}' of {source.name}; it has: {', '.join(categories)}")
        samples = samples[samples["category"] == category].reset_index(drop=True)
    if samples.empty:
        raise InputError(f"{source.title}: no image found in {images.folder}")
    if parameters.item_pattern != AUTO:
        samples["item"] = match_items(samples["path"], parameters.item_pattern).fillna(samples["item"])
    for one, problems in source.compare_counts(samples).items():
        title = f"{source.title} {one}".strip()
        if problems and not parameters.allow_partial:
            raise InputError(
                f"{title}: in {images.folder} {'; '.join(problems)}. "
                "Set ingestion.allow_partial to true to continue with what is there."
            )
        for problem in problems:
            logger.warning("%s: %s", title, problem)
    classes = samples["defect_class"][samples["label"] == 1]
    message = "%s: %d normal images and %d anomalies of %d classes in %s"
    named = samples["dataset"].iloc[0], (samples["label"] == 0).sum(), len(classes), classes.nunique(), images.folder
    logger.info(message, *named)
    return samples


def _refuse_outside(samples: pd.DataFrame, folder: Path) -> None:
    """Raise for a path that leads out of the folder of the images: a list of labels may name anything."""
    named = {part for column in ("path", "mask_path") for paths in samples[column] for part in str(paths).split("|")}
    for path in sorted(named):
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise InputError(f"{path!r} is outside of {folder}, and the list of samples names it")


def check_images(listed: pd.DataFrame, images: ImageLoader, parameters: IngestionParameters) -> pd.DataFrame:
    """Read every image once: content and perceptual hash, size, pixel format; name the ones that cannot be used.

    Images deeper than eight bits get one range of values, by which all of them will be scaled.
    """
    checks = images.examine_all(listed["path"].tolist(), os.cpu_count() or 1, listed["crop"].tolist())
    samples = pd.concat([listed.reset_index(drop=True), checks.reset_index(drop=True)], axis=1)
    readable = samples["problem"] == ""
    bad = samples[~readable]
    problems = (bad["path"] + " (" + bad["problem"].str.removeprefix("UnusableImageError: ") + ")").tolist()
    if not readable.any():
        raise InputError(f"There is no readable image in {images.folder}, for example {problems[0]}")
    if len(bad) > parameters.max_unreadable_share * len(samples):
        share = math.ceil(100 * len(bad) / len(samples)) / 100
        raise InputError(
            f"{len(bad)} of {len(samples)} images in {images.folder} cannot be read: {_enumerate(problems)}. "
            f"ingestion.max_unreadable_share allows {parameters.max_unreadable_share:.1%}. Remove or repair them, or "
            f"continue without them: --params=ingestion.max_unreadable_share={share:g}"
        )
    for problem in problems:
        logger.warning("Unreadable image excluded: %s/%s", images.folder, problem)
    pixel_range = find_range(samples[readable], parameters.pixel_range)
    _log_decoding(samples[readable], pixel_range)
    return samples.assign(pixel_range=np.where((samples["deep"] != "") & readable, pixel_range, ""))


def _log_decoding(samples: pd.DataFrame, pixel_range: str) -> None:
    """One line for each thing that was done to some images and that their owner may not expect."""
    deep = samples["deep"] != ""
    for pixel_format, part in samples[deep].groupby("pixel_format"):
        message = "%s of %s with values from %g to %g: scaled by the range %s (ingestion.pixel_range)"
        logger.info(message, _count(part), pixel_format, part["lowest"].min(), part["highest"].max(), pixel_range)
    converted = samples[~deep & ~samples["pixel_format"].isin(PLAIN_FORMATS)]
    for pixel_format, part in converted.groupby("pixel_format"):
        message = "%s of pixel format %s: converted to RGB, for example %s"
        logger.warning(message, _count(part), PIXEL_FORMATS.get(str(pixel_format), pixel_format), part["path"].iloc[0])
    done = samples.assign(done=samples["done"].str.split("|")).explode("done")
    for what, part in done[done["done"] != ""].groupby("done"):
        logger.warning("%s: %s, for example %s", _count(part), what, part["path"].iloc[0])


def _count(samples: pd.DataFrame) -> str:
    return "1 image" if len(samples) == 1 else f"{len(samples)} images"


def _enumerate(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def split_normals(checked: pd.DataFrame, parameters: IngestionParameters) -> pd.DataFrame:
    """Divide the normals 3:1 by sorted name, unless they come with a split; anomalies are drawn by the runs.

    All listed names are split, so that an unreadable image does not change the split of others. By item, items are
    split as a whole, 3:1 by their number; the runs then test no item that they learn from. With ``drop_duplicates``
    repeated samples get a problem, as unreadable ones have.
    """
    from sklearn.model_selection import GroupShuffleSplit  # slow to import

    by_item = splits_by_item(checked, parameters.split_by_item)
    samples = join_images(checked, parameters.item_pattern, by_item)
    samples.loc[samples["label"] == 1, "split"] = "anomaly"
    undivided = samples[samples["split"] == ""].sort_values("sample_id")
    for category, normals in undivided.groupby("category"):
        codes, items = normals["item" if by_item else "sample_id"].factorize()
        if len(items) < 2:
            name, what = f"{source_of(checked).title} {category}".strip(), "items" if by_item else "images"
            shown = f": all {len(normals)} normal images show {items[0]}" if by_item else f", found {len(normals)}"
            raise InputError(f"{name}: a 3:1 split needs at least two normal {what}{shown}")
        splitter = GroupShuffleSplit(n_splits=1, test_size=TEST_SHARE, random_state=42)
        train, test = next(splitter.split(codes, groups=codes))
        samples.loc[normals.index[train], "split"] = "train"
        samples.loc[normals.index[test], "split"] = "test"
    if parameters.drop_duplicates:
        samples["problem"] = _drop_repeats(samples)
    if by_item:
        samples["problem"] = _drop_leaks(samples)
    _refuse_too_few(samples)
    return samples


def _drop_leaks(samples: pd.DataFrame) -> pd.Series:
    """The problem of each sample, which a test normal of an item that trains gets, too: its source divided the item."""
    usable = samples[samples["problem"] == ""]
    trained = set((usable["category"] + "|" + usable["item"])[usable["split"] == "train"])
    leaks = usable.index[(usable["split"] == "test") & (usable["category"] + "|" + usable["item"]).isin(trained)]
    problem = samples["problem"].copy()
    problem[leaks] = LEAK
    if len(leaks):
        message = "%d test images show items that train and are dropped, for example %s (ingestion.split_by_item)"
        logger.warning(message, len(leaks), samples["sample_id"][leaks[0]])
    return problem


def _drop_repeats(samples: pd.DataFrame) -> pd.Series:
    """The problem of each sample, which a repeat of an earlier one gets, too.

    Where normals and anomalies show the same, no copy can be trusted and all are dropped.
    """
    usable = samples[samples["problem"] == ""].sort_values("sample_id")
    shown = content(usable)
    first = usable["sample_id"].groupby(shown).transform("first")
    of_both_labels = usable["label"].groupby(shown).transform("nunique") > 1
    for _, copies in usable[of_both_labels].groupby(shown):
        logger.error("Normal and anomalous at once, all copies are dropped: %s", ", ".join(copies["sample_id"]))
    repeats = usable[of_both_labels | (first != usable["sample_id"])]
    problem = samples["problem"].copy()
    problem[repeats.index] = DROPPED + "repeats " + first[repeats.index]
    problem[usable.index[of_both_labels]] = DROPPED + "normal and anomalous at once"
    if len(repeats):
        names = _enumerate(repeats["sample_id"].tolist())
        logger.warning("Repeated images dropped: %d of %d: %s", len(repeats), len(usable), names)
    return problem


def _refuse_too_few(samples: pd.DataFrame) -> None:
    for category, part in samples.groupby("category"):
        name = f"{part['dataset'].iloc[0]} {category}".strip()
        for split, least in MIN_NORMALS.items():
            usable = ((part["split"] == split) & (part["problem"] == "")).sum()
            if usable < least:
                raise InputError(f"{name}: {usable} usable normal images to {split}, at least {least} are needed")
        items = part["item"][(part["split"] == "train") & (part["problem"] == "")].unique()
        if len(items) < 2:
            raise InputError(f"{name}: all normal images to train show {items[0]}, at least 2 items are needed")


def refuse_wrong_split(samples: pd.DataFrame) -> pd.DataFrame:
    """Catalog validator: the stored split is the one that the source declares, by image or by item."""
    source = source_of(samples)
    for category, part in samples.groupby("category"):
        name = f"{source.title} {category}".strip()
        normals, anomalies = part["split"][part["label"] == 0], part["split"][part["label"] == 1]
        if set(normals) != {"train", "test"}:
            raise InputError(f"{name}: every normal belongs to train or test, found {normals.value_counts().to_dict()}")
        if (anomalies != "anomaly").any():
            raise InputError(f"{name}: an anomaly is in the split of the normals")
        by_image = _is_three_to_one(normals, part["sample_id"])
        if source.split == "three_to_one" and not (by_image or _is_three_to_one(normals, part["item"])):
            counts = " to ".join(str((normals == split).sum()) for split in ("train", "test"))
            raise InputError(f"{name}: {counts} normals is not a 3:1 split")
    return samples


def _is_three_to_one(splits: pd.Series, items: pd.Series) -> bool:
    """Whether a quarter of the items is tested, and none of these trains."""
    train, test = (set(items[splits.index[splits == split]]) for split in ("train", "test"))
    return not train & test and len(test) == math.ceil(TEST_SHARE * len(train | test))
