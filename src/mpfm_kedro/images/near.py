"""Near duplicates: images whose perceptual hashes differ in few bits."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from mpfm_kedro.sources.repeats import unreadable

# Of 256 bits. On real images: scaled and compressed copies differ in 0 to 8, images that only look alike in more
# (solar cells of one type from about 6 on).
MAX_DISTANCE = 8
BLOCK = 256


def near_sets(hashes: Sequence[str]) -> np.ndarray:
    """Set of each hash: those that differ in at most ``MAX_DISTANCE`` bits are in one, also through others.

    All pairs are compared, a block of rows at a time. Of the pairs found only the sets are stored, so that memory
    stays bounded when all images are alike.
    """
    names, position = np.unique(np.asarray(hashes, dtype=str), return_inverse=True)
    words = np.frombuffer(bytes.fromhex("".join(names)), dtype=np.uint64).reshape(len(names), -1)
    own = np.arange(len(words))
    first = own  # the first member of each one's set
    for start in range(0, len(words), BLOCK):
        rows, others = words[start : start + BLOCK], words[start:]
        distance = np.zeros((len(rows), len(others)), dtype=np.uint16)
        for word in range(words.shape[1]):
            distance += np.bitwise_count(rows[:, None, word] ^ others[None, :, word])
        row, column = np.nonzero(distance <= MAX_DISTANCE)
        new = first[row + start] != first[column + start]
        ends = np.concatenate([row[new] + start, own]), np.concatenate([column[new] + start, first])
        edges = coo_array((np.ones(len(ends[0]), dtype=bool), ends), shape=(len(words), len(words)))
        _, component = connected_components(edges, directed=False)
        first = np.unique(component, return_index=True)[1][component]
    return first[position]


def near_copies(samples: pd.DataFrame) -> pd.Series:
    """The set of each sample, those of its near copies in its category; an image of one colour is like no other."""
    sets = samples["sample_id"].copy()
    hashed = samples[~unreadable(samples) & (samples["dhash"] != "")]
    for category, hashes in hashed.groupby("category")["dhash"]:
        sets[hashes.index] = f"{category}|" + pd.Series(near_sets(hashes.tolist()), hashes.index).astype(str)
    return sets
