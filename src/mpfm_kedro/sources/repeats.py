"""Samples that belong together: by content, and by the item they were taken from."""

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

DROPPED = "dropped: "
LEAK = DROPPED + "its item trains"


def unreadable(samples: pd.DataFrame) -> pd.Series:
    """Samples with a problem of their own; a dropped repeat has none."""
    return (samples["problem"] != "") & ~samples["problem"].str.startswith(DROPPED)


def content(samples: pd.DataFrame) -> pd.Series:
    """What a sample shows: the hash of its file and the crop, within its category.

    Categories have their own models and are never compared. An unreadable sample is like no other.
    """
    shown = samples["category"] + "|" + samples["content_hash"] + "|" + samples["crop"]
    return shown.mask(unreadable(samples), samples["sample_id"])


def joined_items(samples: pd.DataFrame, *sets: pd.Series) -> pd.Series:
    """The item of each sample; items that share an image, or a set of samples, are one, named as the first of them."""
    n, links = len(samples), [samples["category"] + "|" + samples["item"], content(samples), *sets]
    member = np.concatenate([link.factorize()[0] + (number + 1) * n for number, link in enumerate(links)])
    ends, size = (np.tile(np.arange(n), len(links)), member), (len(links) + 1) * n
    edges = coo_array((np.ones(len(member), dtype=bool), ends), shape=(size, size))
    _, component = connected_components(edges, directed=False)
    return samples["item"].groupby(component[:n]).transform("min")
