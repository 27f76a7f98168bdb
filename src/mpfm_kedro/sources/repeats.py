"""Samples that belong together: by content, and by the item they were taken from."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

DROPPED = "dropped: "


def unreadable(samples: pd.DataFrame) -> pd.Series:
    """Samples with a problem of their own; a dropped repeat has none."""
    return (samples["problem"] != "") & ~samples["problem"].str.startswith(DROPPED)


def content(samples: pd.DataFrame) -> pd.Series:
    """What a sample shows: the hash of its file and the crop, within its category.

    Categories have their own models and are never compared. An unreadable sample is like no other.
    """
    shown = samples["category"] + "|" + samples["content_hash"] + "|" + samples["crop"]
    return shown.mask(unreadable(samples), samples["sample_id"])


def joined_groups(samples: pd.DataFrame) -> pd.Series:
    """A number for each sample's group; groups that share an image are one."""
    groups = (samples["category"] + "|" + samples["group"]).factorize()[0]
    shown = content(samples).factorize()[0] + len(samples)
    size = 2 * len(samples)
    edges = coo_array((np.ones(len(samples), dtype=bool), (groups, shown)), shape=(size, size))
    _, component = connected_components(edges, directed=False)
    return pd.Series(component[groups], index=samples.index)
