"""From raw files to the sample table with its split."""

from __future__ import annotations

import logging
import os

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from mpfm_kedro.errors import InputError
from mpfm_kedro.io.images import ImageLoader
from mpfm_kedro.parameters import IngestionParameters
from mpfm_kedro.sources import get_source
from mpfm_kedro.sources.source import Counts

logger = logging.getLogger(__name__)
PLAIN_MODES = {"L", "RGB"}


def list_samples(images: ImageLoader, category: str, parameters: IngestionParameters) -> pd.DataFrame:
    """List the samples of the dataset and compare their numbers with the published ones."""
    source = get_source(images.dataset)
    samples = source.list_samples(images.folder)
    categories = sorted(samples["category"].unique())
    if category != "all":
        if category not in categories:
            raise InputError(f"Unknown category '{category}' of {source.name}; it has: {', '.join(categories)}")
        samples = samples[samples["category"] == category].reset_index(drop=True)
    if samples.empty:
        raise InputError(f"{source.title}: no image found in {images.folder}")
    if source.counts is not None:
        for name, part in samples.groupby("category"):
            problems = _compare_counts(part, source.counts[str(name)])
            if problems and not parameters.allow_partial:
                raise InputError(
                    f"{source.title} {name}: in {images.folder} {'; '.join(problems)}. "
                    "Set ingestion.allow_partial to true to go on with what is there."
                )
            for problem in problems:
                logger.warning("%s %s: %s", source.title, name, problem)
    return samples


def _compare_counts(samples: pd.DataFrame, expected: Counts) -> list[str]:
    """What differs between the listed samples of one category and the published numbers."""
    normal = samples["label"] == 0
    anomalies = {str(name): int(n) for name, n in samples["defect_class"][~normal].value_counts().items()}
    problems = []
    if normal.sum() != expected.train + expected.test:
        problems.append(f"{normal.sum()} normal images, published are {expected.train + expected.test}")
    if isinstance(expected.anomalies, int):
        if sum(anomalies.values()) != expected.anomalies:
            problems.append(f"{sum(anomalies.values())} anomalies, published are {expected.anomalies}")
    else:
        for name in sorted(set(anomalies) | set(expected.anomalies)):
            found, published = anomalies.get(name, 0), expected.anomalies.get(name, 0)
            if found != published:
                problems.append(f"{found} anomalies of class '{name}', published are {published}")
    return problems


def check_images(listed: pd.DataFrame, images: ImageLoader, parameters: IngestionParameters) -> pd.DataFrame:
    """Read every image once: content hash, size, mode; name the ones that cannot be used."""
    checks = images.examine_all(sorted(listed["path"].unique()), processes=os.cpu_count() or 1)
    samples = listed.join(checks, on="path")
    bad = samples[samples["problem"] != ""]
    for path, problem in zip(bad["path"], bad["problem"], strict=True):
        logger.warning("Unreadable image left out: %s (%s)", images.folder / path, problem)
    if len(bad) == len(samples):
        raise InputError(f"No readable image is left in {images.folder}")
    if len(bad) > parameters.max_unreadable_share * len(samples):
        raise InputError(
            f"{len(bad)} of {len(samples)} images in {images.folder} cannot be read, for example "
            f"{bad['path'].iloc[0]} ({bad['problem'].iloc[0]}); "
            f"ingestion.max_unreadable_share allows {parameters.max_unreadable_share:.1%}"
        )
    converted = samples[(samples["problem"] == "") & ~samples["mode"].isin(PLAIN_MODES)]
    for mode, part in converted.groupby("mode"):
        logger.warning(
            "%d images of mode %s are converted to RGB, for example %s", len(part), mode, part["path"].iloc[0]
        )
    return samples


def split_normals(checked: pd.DataFrame) -> pd.DataFrame:
    """Divide the normals 3:1 by sorted name, unless they come with a split; anomalies go to the draws.

    The split is made over all listed names, so that an unreadable image moves no other one.
    """
    source = get_source(str(checked["dataset"].iloc[0]))
    samples = checked.copy()
    samples.loc[samples["label"] == 1, "split"] = "anomaly"
    for _, part in samples[samples["split"] == ""].groupby("category"):
        order = part.sort_values("sample_id").index.to_numpy()
        if len(order) < 2:
            raise InputError(f"{source.title}: a 3:1 split needs at least two normal images, found {len(order)}")
        train, test = train_test_split(order, test_size=0.25, random_state=42)
        samples.loc[train, "split"] = "train"
        samples.loc[test, "split"] = "test"
    return samples


def refuse_wrong_split(samples: pd.DataFrame) -> pd.DataFrame:
    """Catalog validator: the stored split is the one that the source declares."""
    source = get_source(str(samples["dataset"].iloc[0]))
    for category, part in samples.groupby("category"):
        normals = part["split"][part["label"] == 0].value_counts()
        train, test = int(normals.get("train", 0)), int(normals.get("test", 0))
        if train + test != normals.sum() or min(train, test) == 0:
            raise InputError(f"{source.title} {category}: every normal belongs to train or test, found {dict(normals)}")
        if source.split == "three_to_one" and test != int(np.ceil((train + test) / 4)):
            raise InputError(f"{source.title} {category}: {train} to {test} normals is not a 3:1 split")
        if (part["split"][part["label"] == 1] != "anomaly").any():
            raise InputError(f"{source.title} {category}: an anomaly is in the split of the normals")
    return samples
