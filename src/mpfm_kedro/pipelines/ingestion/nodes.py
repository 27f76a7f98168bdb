"""From raw files to the sample table with its split."""

from __future__ import annotations

import logging
import math
import os
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupShuffleSplit, train_test_split

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.ranges import find_range
from mpfm_kedro.parameters import IngestionParameters
from mpfm_kedro.sources import get_source, source_of
from mpfm_kedro.sources.repeats import DROPPED, content, joined_groups
from mpfm_kedro.sources.source import compare_counts

logger = logging.getLogger(__name__)
PLAIN_FORMATS = {"L", "RGB"}
PIXEL_FORMATS = {"1": "one bit", "P": "P (palette)", "RGBA": "RGBA (with transparency)"}
OWN = "folder"
TEST_SHARE = 0.25
MIN_TRAIN_NORMALS = 4
NAMES_IN_A_LINE = 40


def list_samples(images: ImageLoader, category: str, parameters: IngestionParameters, name: str = OWN) -> pd.DataFrame:
    """List the samples of the dataset and compare their numbers with the published ones; own images get a name."""
    source = get_source(images.dataset)
    samples = source.list_samples(images.folder)
    _refuse_outside(samples, images)
    if source.name == OWN:
        samples = samples.assign(dataset=name)
        if others := images.other_folders():
            logger.warning(
                "Results named '%s' were of %s before and are replaced; --params=name=… gives these another name",
                name,
                others[0],
            )
    categories = sorted(samples["category"].unique())
    if category != "all":
        if category not in categories:
            raise InputError(f"Unknown category '{category}' of {source.name}; it has: {', '.join(categories)}")
        samples = samples[samples["category"] == category].reset_index(drop=True)
    if samples.empty:
        raise InputError(f"{source.title}: no image found in {images.folder}")
    if source.counts is not None:
        for one, part in samples.groupby("category"):
            problems = compare_counts(part, source.counts[str(one)])
            title = f"{source.title} {one}".strip()
            if problems and not parameters.allow_partial:
                raise InputError(
                    f"{title}: in {images.folder} {'; '.join(problems)}. "
                    "Set ingestion.allow_partial to true to continue with what is there."
                )
            for problem in problems:
                logger.warning("%s: %s", title, problem)
    return samples


def _refuse_outside(samples: pd.DataFrame, images: ImageLoader) -> None:
    """Raise for a path that leads out of the folder of the images: a list of labels may name anything."""
    named = {part for column in ("path", "mask_path") for paths in samples[column] for part in str(paths).split("|")}
    for path in sorted(named):
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise InputError(f"{path!r} is outside of {images.folder}, and the list of samples names it")


def check_images(listed: pd.DataFrame, images: ImageLoader, parameters: IngestionParameters) -> pd.DataFrame:
    """Read every image once: content and perceptual hash, size, pixel format; name the ones that cannot be used.

    Images deeper than eight bits get one range of values, by which all of them will be scaled.
    """
    try:
        checks = images.examine_all(listed["path"].tolist(), os.cpu_count() or 1, listed["crop"].tolist())
    except BrokenProcessPool as error:
        message = "A worker process was killed while it read images, most likely for lack of memory; start again"
        raise InputError(message) from error
    samples = pd.concat([listed.reset_index(drop=True), checks.reset_index(drop=True)], axis=1)
    bad = samples[samples["problem"] != ""]
    problems = [
        f"{path} ({problem.removeprefix('UnusableImageError: ')})"
        for path, problem in zip(bad["path"], bad["problem"], strict=True)
    ]
    if len(bad) == len(samples):
        raise InputError(f"There is no readable image in {images.folder}, for example {problems[0]}")
    if len(bad) > parameters.max_unreadable_share * len(samples):
        share = math.ceil(100 * len(bad) / len(samples)) / 100
        raise InputError(
            f"{len(bad)} of {len(samples)} images in {images.folder} cannot be read: {_listed(problems)}. "
            f"ingestion.max_unreadable_share allows {parameters.max_unreadable_share:.1%}. Remove or repair them, or "
            f"continue without them: --params=ingestion.max_unreadable_share={share:g}"
        )
    for problem in problems:
        logger.warning("Unreadable image excluded: %s/%s", images.folder, problem)
    usable = samples[samples["problem"] == ""]
    pixel_range = find_range(usable, parameters.pixel_range)
    _report_decoding(usable, pixel_range)
    return samples.assign(pixel_range=np.where((samples["deep"] != "") & (samples["problem"] == ""), pixel_range, ""))


def _report_decoding(samples: pd.DataFrame, pixel_range: str) -> None:
    """One line for each thing that was done to some images and that their owner may not expect."""
    deep = samples["deep"] != ""
    for pixel_format, part in samples[deep].groupby("pixel_format"):
        message = "%s of %s with values from %g to %g: scaled by the range %s (ingestion.pixel_range)"
        logger.info(message, _images(part), pixel_format, part["lowest"].min(), part["highest"].max(), pixel_range)
    converted = samples[~deep & ~samples["pixel_format"].isin(PLAIN_FORMATS)]
    for pixel_format, part in converted.groupby("pixel_format"):
        message = "%s of pixel format %s: converted to RGB, for example %s"
        logger.warning(message, _images(part), PIXEL_FORMATS.get(str(pixel_format), pixel_format), part["path"].iloc[0])
    done = samples.assign(done=samples["done"].str.split("|")).explode("done")
    for what, part in done[done["done"] != ""].groupby("done"):
        logger.warning("%s: %s, for example %s", _images(part), what, part["path"].iloc[0])


def _images(samples: pd.DataFrame) -> str:
    return "1 image" if len(samples) == 1 else f"{len(samples)} images"


def split_normals(checked: pd.DataFrame, group_split: bool = False) -> pd.DataFrame:
    """Divide the normals 3:1 by sorted name, unless they come with a split; anomalies are drawn by the runs.

    All listed names are split, so that an unreadable image does not change the split of others. With ``group_split``
    items (groups, joined where they share an image) are split as a whole, 3:1 by their number; the runs then test no
    item that they learn from.
    """
    source = source_of(checked)
    samples = checked.copy()
    samples.loc[samples["label"] == 1, "split"] = "anomaly"
    undivided = samples[samples["split"] == ""].sort_values("sample_id")
    if group_split and undivided.empty:
        logger.warning(
            "%s comes with its own split, which ingestion.group_split does not change; it only excludes test images "
            "of items that train",
            source.title,
        )
    elif group_split:
        undivided = undivided.assign(joined=joined_groups(samples))
    for category, part in undivided.groupby("category"):
        name = f"{source.title} {category}".strip()
        train, test = _divide_groups(part, name) if group_split else _divide(part, name)
        samples.loc[train, "split"] = "train"
        samples.loc[test, "split"] = "test"
    return samples


def _divide(normals: pd.DataFrame, name: str) -> tuple[pd.Index, pd.Index]:
    if len(normals) < 2:
        raise InputError(f"{name}: a 3:1 split needs at least two normal images, found {len(normals)}")
    train, test = train_test_split(normals.index.to_numpy(), test_size=TEST_SHARE, random_state=42)
    return train, test


def _divide_groups(normals: pd.DataFrame, name: str) -> tuple[pd.Index, pd.Index]:
    groups = normals["joined"].factorize()[0]
    if len(set(groups)) < 2:
        raise InputError(
            f"{name}: ingestion.group_split needs at least two groups of normal images, and all {len(normals)} "
            f"belong to the group of {normals['group'].iloc[0]}"
        )
    splitter = GroupShuffleSplit(n_splits=1, test_size=TEST_SHARE, random_state=42)
    train, test = next(splitter.split(groups, groups=groups))
    logger.info("%s: %d groups, %d normals train and %d test", name, len(set(groups)), len(train), len(test))
    return normals.index[train], normals.index[test]


def drop_repeats(divided: pd.DataFrame, drop_duplicates: bool) -> pd.DataFrame:
    """If asked for, drop all but the first of the samples that show exactly the same.

    A dropped sample stays in the table with what it repeats as its ``problem``. Where normals and anomalies show
    the same, no copy can be trusted and all are dropped.
    """
    if not drop_duplicates:
        _refuse_too_few(divided)
        return divided
    usable = divided[divided["problem"] == ""].sort_values("sample_id")
    shown = content(usable)
    first = usable["sample_id"].groupby(shown).transform("first")
    of_both_labels = usable["label"].groupby(shown).transform("nunique") > 1
    for _, copies in usable[of_both_labels].groupby(shown):
        logger.error("Normal and anomalous at once, all copies are dropped: %s", ", ".join(copies["sample_id"]))
    repeats = usable[of_both_labels | (first != usable["sample_id"])]
    samples = divided.copy()
    samples.loc[repeats.index, "problem"] = DROPPED + "repeats " + first[repeats.index]
    samples.loc[usable.index[of_both_labels], "problem"] = DROPPED + "normal and anomalous at once"
    if len(repeats):
        names = _listed(repeats["sample_id"].tolist())
        logger.warning("Repeated images dropped: %d of %d: %s", len(repeats), len(usable), names)
    _refuse_too_few(samples)
    return samples


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_IN_A_LINE} more" if len(names) > NAMES_IN_A_LINE else ""
    return ", ".join(names[:NAMES_IN_A_LINE]) + more


def _refuse_too_few(samples: pd.DataFrame) -> None:
    for category, part in samples.groupby("category"):
        remaining = part["split"][part["problem"] == ""].value_counts()
        for split, least in (("train", MIN_TRAIN_NORMALS), ("test", 1)):
            if remaining.get(split, 0) < least:
                name = f"{part['dataset'].iloc[0]} {category}".strip()
                raise InputError(
                    f"{name}: {remaining.get(split, 0)} usable normal images to {split}, at least {least} are needed"
                )


def refuse_wrong_split(samples: pd.DataFrame) -> pd.DataFrame:
    """Catalog validator: the stored split is the one that the source declares, by image or by group."""
    source = source_of(samples)
    for category, part in samples.groupby("category"):
        name = f"{source.title} {category}".strip()
        normals = part["split"][part["label"] == 0].value_counts()
        train, test = int(normals.get("train", 0)), int(normals.get("test", 0))
        if train + test != normals.sum() or min(train, test) == 0:
            raise InputError(f"{name}: every normal belongs to train or test, found {dict(normals)}")
        if source.split == "three_to_one" and not (_is_quarter(test, train + test) or _is_group_split(part)):
            raise InputError(f"{name}: {train} to {test} normals is not a 3:1 split")
        if (part["split"][part["label"] == 1] != "anomaly").any():
            raise InputError(f"{name}: an anomaly is in the split of the normals")
    return samples


def _is_quarter(test: int, total: int) -> bool:
    return test == int(np.ceil(TEST_SHARE * total))


def _is_group_split(samples: pd.DataFrame) -> bool:
    """Whether no group of normals both trains and tests, and a quarter of the groups is tested."""
    groups = joined_groups(samples)
    train, test = set(groups[samples["split"] == "train"]), set(groups[samples["split"] == "test"])
    return not train & test and _is_quarter(len(test), len(train | test))
