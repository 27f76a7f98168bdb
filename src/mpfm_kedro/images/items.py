"""Images of one item: by a pattern of their paths, by a table, or where neither names the items, near copies."""

import logging
from pathlib import Path, PurePosixPath

import pandas as pd

from mpfm_kedro.atomic import first_line
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.near import near_copies
from mpfm_kedro.parameters import AUTO
from mpfm_kedro.sources.repeats import joined_items

TABLE = "items.csv"
NAMED_BY = "items_named_by"  # column of samples that have such a table
logger = logging.getLogger(__name__)
MIN_SHARE = 0.5  # of the paths that a pattern must match
EXAMPLES = 3
MAX_SET = 0.5  # of the images of a category, that may be near copies of each other


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


def list_items(samples: pd.DataFrame, folder: Path, pattern: str) -> pd.DataFrame:
    """The samples with the items that the table of a folder gives them; unchanged where there is no such table."""
    file = folder / TABLE
    if not file.is_file():
        return samples
    if pattern != AUTO:
        raise InputError(
            f"Parameter 'ingestion.item_pattern' = '{pattern}': {file} names the items, too; use one of both"
        )
    items = _read_table(file)
    known = set(samples["path"])
    if unknown := next((path for path in items.index if path not in known), None):
        raise InputError(f"{file} names {unknown}, not an image of the dataset; paths are relative to {folder}")
    listed = samples["path"].map(items)
    if others := samples["path"][listed.isna()].tolist():
        message = "%s has no item for %d of %d images, each of which is an item, for example %s"
        logger.warning(message, TABLE, len(others), len(samples), others[0])
    return samples.assign(item=listed.fillna(samples["item"]), **{NAMED_BY: TABLE})


def _read_table(file: Path) -> pd.Series:
    """The item of each path that has one."""
    try:
        table = pd.read_csv(file, dtype=str, index_col=False, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {first_line(error)}") from error
    if missing := [name for name in ("path", "item") if name not in table]:
        found = ", ".join(map(str, table.columns))
        raise InputError(f"{file} has no column '{missing[0]}'; expected are path,item, found are {found}")
    paths = table["path"].map(lambda path: PurePosixPath(path).as_posix())
    if len(repeated := paths[paths.duplicated()]):
        raise InputError(f"{file} names {repeated.iloc[0]} twice")
    items = table["item"].set_axis(paths)
    return items[items != ""]


def join_images(samples: pd.DataFrame, pattern: str, by_item: bool) -> pd.DataFrame:
    """The samples with their final item: items that share an image are one.

    Where items matter (``by_item``) and neither a pattern nor a table names them, near copies are one, too, unless most
    images of a category are alike: then the hashes only show what all parts have in common.
    """
    named_by = "ingestion.item_pattern" if pattern != AUTO else TABLE if NAMED_BY in samples else ""
    near, alike = samples["sample_id"], []
    if by_item and not named_by:
        near = near_copies(samples)
        sets = near.groupby(samples["category"])
        alike = [name for name, own in sets if own.value_counts().iloc[0] > max(1, MAX_SET * len(own))]
        near = near.mask(samples["category"].isin(alike), samples["sample_id"])
    named = samples.assign(item=joined_items(samples, near))
    if by_item:
        n_items = (named["category"] + "|" + named["item"]).nunique()
        logger.info("%d items in %d images: %s", n_items, len(named), _origin(named_by, alike))
    return named


def _origin(named_by: str, alike: list[str]) -> str:
    """Where items come from, and how to change it."""
    if named_by:
        return f"named by {named_by}"
    near = "only near copies are one item"
    if alike:
        of = f" of {', '.join(alike)}" if any(alike) else ""
        near = f"most images{of} are alike, so only equal ones are one item{of and ' there'}"
    hint = f"name it by ingestion.item_pattern or {TABLE}; '(.*)' makes each image an item"
    return f"{near}. If others show one part, {hint}"
