"""Images that look like a known defect are not called good, whatever their score.

With many normals and few known defects a detector may learn little of one defect: its image, and copies of it, would
still be good. The likeness compares the nearest normal and the nearest known defect. Its threshold is a quantile of
held-out normals as that of the score is, so at most as many normals become uncertain, and a known defect is good only
where normals look the same.
"""

import torch
from torch import Tensor

from mpfm_kedro.detectors.mpfm.tensors import squared_distances


def likeness(z: Tensor, normals: Tensor, known: Tensor, excluded: Tensor | None = None) -> Tensor:
    """d_n / (d_n + d_k) of images (m, d), by the distances of the nearest normal (n, d) and known defect (k, d): (m,).

    It is 1 for a copy of a known defect, and 0 where none is known. Normals that are ``excluded`` (m, n) do not count.
    """
    if not len(known):
        return z.new_zeros(len(z))
    to_normals = squared_distances(z, normals)
    if excluded is not None:
        to_normals = to_normals.masked_fill(excluded, torch.inf)
    to_normal, to_known = to_normals.amin(1).sqrt(), squared_distances(z, known).amin(1).sqrt()
    return to_normal / (to_normal + to_known).clamp_min(1e-9)
