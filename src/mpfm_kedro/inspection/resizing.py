"""PIL's bilinear resizing as tensor operations, for the exported network: the same bytes for images of any size."""

import torch
from torch import Tensor

PIL_BITS = 22  # of the weights of PIL's resizing
BLOCK = 16  # new pixels that are computed together


def resize_bytes(pixels: Tensor, side: int) -> Tensor:
    """Bytes (B, H, W, 3) → (B, 3, S, S), those that PIL's bilinear resizing gives.

    It rounds after each axis, so their order counts: the width first, but for tall images the height. Both are
    computed, and one is taken: a graph with branches costs less, but not every runtime gets those right.
    """
    height, width = pixels.shape[1:3]
    down, across = resize_weights(height, side), resize_weights(width, side)
    high, wide = _count(height), _count(width)
    tall = (high > side) & (2 * wide < high + side)
    upright = _resize_both(pixels, down, across)  # (B, S, S, 3)
    turned = _resize_both(pixels.transpose(1, 2), across, down).transpose(1, 2)
    return torch.where(tall, upright, turned)[:, :side, :side].permute(0, 3, 1, 2)


def _resize_both(pixels: Tensor, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor]) -> Tensor:
    """(B, n, m, 3) → (B, S, S, 3), the rows first."""
    return _resize_rows(_resize_rows(pixels, *rows).transpose(1, 2), *columns).transpose(1, 2)


def _resize_rows(rows: Tensor, window: Tensor, weight: Tensor) -> Tensor:
    """n rows of bytes (B, n, …) → S rows (B, S, …), the bytes nearest to the sums; double precision holds them exactly.

    A product of small matrices: (blocks, rows of a block, window) · (B, blocks, window, …).
    """
    taken = rows.index_select(1, window.flatten()).flatten(2).unflatten(1, window.shape)
    resized = (weight @ taken.double() + 0.5).to(torch.uint8)
    return resized.flatten(1, 2).unflatten(2, rows.shape[2:])


def resize_weights(n: int, side: int) -> tuple[Tensor, Tensor]:
    """PIL's bilinear weights of n pixels for S new ones, to 22 bits.

    A new pixel needs few neighbours; those of a block of new pixels are taken together.
    w_ij ∝ max(0, 2 max(n, S) − |(2j + 1) S − (2i + 1) n|): a triangle around the centre of the new pixel i that
    reaches as far as one new pixel is wide, or one old pixel if that is more. These numbers are whole.

    Returns:
        The pixels j that a block needs (blocks, window), and w (blocks, pixels of a block, window).
    """
    i = torch.arange(-(-side // BLOCK) * BLOCK).double().view(-1, BLOCK, 1)
    n_old = _count(n)
    center, reach = (2 * i + 1) * n_old, 2 * n_old.clamp_min(side)
    first = ((center[:, 0] - reach - side) / (2 * side)).floor() + 1
    j = first + torch.arange((BLOCK + 1) * n // side + 3).double()
    inside = (j >= 0) & (j < n_old)
    weight = (reach - ((2 * j[:, None] + 1) * side - center).abs()).relu() * inside[:, None]
    share = weight / weight.sum(2, keepdim=True).clamp_min(1)
    return j.clamp_min(0).minimum(n_old - 1).long(), (share * 2**PIL_BITS + 0.5).floor() / 2**PIL_BITS


def _count(n: int) -> Tensor:
    """A number as a tensor; one that is known when the graph runs stays a part of the graph."""
    return torch.scalar_tensor(n, dtype=torch.float64)
