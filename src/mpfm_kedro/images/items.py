"""Which images show one item: by a pattern of their paths, or where nothing names the items, near copies."""

from __future__ import annotations

import logging

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.near import near_copies
from mpfm_kedro.parameters import AUTO
from mpfm_kedro.sources.repeats import joined_items

logger = logging.getLogger(__name__)
MIN_SHARE = 0.5  # of the paths that a pattern must match
EXAMPLES = 3


def match_items(paths: pd.Series, pattern: str) -> pd.Series:
    """The first group of a regular expression in each path; missing where it does not match."""
    items = paths.str.extract(pattern)[0]
    others = paths[items.isna() | (items == "")].tolist()
    if len(others) > (1 - MIN_SHARE) * len(paths):
        raise InputError(
            f"Parameter 'ingestion.item_pattern' = '{pattern}' matches {len(paths) - len(others)} of {len(paths)} "
            f"paths; not, for example, {', '.join(others[:EXAMPLES])}"
        )
    if others:
        message = "ingestion.item_pattern does not match %d of %d paths, each of which is an item, for example %s"
        logger.warning(message, len(others), len(paths), others[0])
    return items.where(items != "")


def join_images(samples: pd.DataFrame, pattern: str, by_item: bool) -> pd.DataFrame:
    """The samples with their final item: items that share an image are one.

    Where items matter (``by_item``) and no pattern names them, near copies are one, too.
    """
    near = [near_copies(samples)] if by_item and pattern == AUTO else []
    named = samples.assign(item=joined_items(samples, *near))
    n_items = (named["category"] + "|" + named["item"]).nunique()
    if by_item and n_items < len(named):
        how = "near copies are one item" if near else "named by ingestion.item_pattern"
        hint = "; name items by ingestion.item_pattern, '(.*)' makes each image one" if near else ""
        logger.info("%d items in %d images: %s%s", n_items, len(named), how, hint)
    return named
