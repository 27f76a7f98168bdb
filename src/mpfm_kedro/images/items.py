"""Which images show one item: by a pattern of their paths, or where nothing names the items, near copies."""

import logging

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.near import near_copies
from mpfm_kedro.parameters import AUTO
from mpfm_kedro.sources.repeats import joined_items

logger = logging.getLogger(__name__)
MIN_SHARE = 0.5  # of the paths that a pattern must match
EXAMPLES = 3
MAX_SET = 0.5  # of the images, that may be near copies of each other


def match_items(paths: pd.Series, pattern: str) -> pd.Series:
    """The first group of a regular expression in each path; missing where it does not match."""
    items = paths.str.extract(pattern)[0]
    others = paths[items.isna() | (items == "")].tolist()
    if len(others) > (1 - MIN_SHARE) * len(paths):
        raise InputError(
            f"Parameter 'ingestion.item_pattern' = '{pattern}' matches {len(paths) - len(others)} of {len(paths)} "
            f"paths; it does not match, for example, {', '.join(others[:EXAMPLES])}"
        )
    if others:
        message = "ingestion.item_pattern does not match %d of %d paths, each of which is an item, for example %s"
        logger.warning(message, len(others), len(paths), others[0])
    return items.where(items != "")


def join_images(samples: pd.DataFrame, pattern: str, by_item: bool) -> pd.DataFrame:
    """The samples with their final item: items that share an image are one.

    Where items matter (``by_item``) and no pattern names them, near copies are one, too, unless most images are alike:
    then the hashes only show what all parts have in common.
    """
    near = near_copies(samples) if by_item and pattern == AUTO else samples["sample_id"]
    alike = near.value_counts().iloc[0] > MAX_SET * len(samples)
    named = samples.assign(item=joined_items(samples, *([] if alike else [near])))
    if by_item:
        n_items = (named["category"] + "|" + named["item"]).nunique()
        logger.info("%d items in %d images: %s", n_items, len(named), _origin(pattern, alike))
    return named


def _origin(pattern: str, alike: bool) -> str:
    """Where items come from, and how to change it."""
    if pattern != AUTO:
        return "named by ingestion.item_pattern"
    near = "most images are alike, so only equal ones are one item" if alike else "only near copies are one item"
    return f"{near}. If others show one part, name it by ingestion.item_pattern; '(.*)' makes each image an item"
