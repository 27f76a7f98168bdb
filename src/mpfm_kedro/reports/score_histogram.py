"""How the scores of unseen normals and of predictions lie around the two thresholds, as a drawing."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpfm_kedro.inspection.thresholds import Promise

WIDTH, HEIGHT = 720, 250
TOP, FLOOR = 40, 200  # of the highest and of the lowest share
BINS = 60
ROOM = 170  # for the name of a threshold
NORMAL, PREDICTED = "#9ec9e2", "#b34700"


def draw_histogram(normal_scores: ArrayLike, scores: ArrayLike, promised: Promise) -> str:
    """Shares of the scores of unseen normals (filled) and of the predictions (line) as SVG."""
    normals, predicted = np.asarray(normal_scores, dtype=float), np.asarray(scores, dtype=float)
    thresholds = [value for value in (promised.good, promised.defective) if value is not None]
    low, high = _range(np.concatenate([normals, predicted, thresholds]))
    edges = np.linspace(low, high, BINS + 1)
    filled, line = (_shares(values, edges) for values in (normals, predicted))
    largest = max(filled.max(), line.max(), 1e-9)
    parts = [f"<path d='{_outline(filled, largest)} Z' fill='{NORMAL}'/>"]
    if len(predicted):
        parts.append(f"<path d='{_outline(line, largest)}' fill='none' stroke='{PREDICTED}' stroke-width='2'/>")
    parts += [_axis(low, high), _legend(len(normals), len(predicted))]
    for row, (name, value) in enumerate((("good up to", promised.good), ("defective above", promised.defective))):
        if value is not None:
            parts.append(_threshold((value - low) / (high - low) * WIDTH, f"{name} {value:.2f}", row))
    title = "Histogram of the scores of unseen normals and of the predictions, with the thresholds"
    box = f"viewBox='0 0 {WIDTH} {HEIGHT}'"
    text = "font-family='system-ui,sans-serif' font-size='13'"
    return f"<svg {box} width='100%' role='img' aria-label='{title}' {text}>{''.join(parts)}</svg>"


def _range(values: NDArray) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def _shares(values: NDArray, edges: NDArray) -> NDArray:
    counts, _ = np.histogram(values, edges)
    return counts / max(1, len(values))


def _outline(shares: NDArray, largest: float) -> str:
    """The steps of a histogram from the lower left to the lower right."""
    heights = FLOOR - (FLOOR - TOP) * np.sqrt(shares / largest)  # a root, so that few high scores are seen
    x = np.linspace(0, WIDTH, len(shares) + 1)
    steps = "".join(f"V{y:.1f}H{right:.1f}" for y, right in zip(heights, x[1:], strict=True))
    return f"M0 {FLOOR}{steps}V{FLOOR}"


def _threshold(x: float, text: str, row: int) -> str:
    """A dashed line; its name is to the left in the first row, to the right in the second, if there is room."""
    left = x > ROOM if row == 0 else x > WIDTH - ROOM
    anchor, shift = ("end", -4) if left else ("start", 4)
    y, dashes = 14 + 17 * row, f"{3 + 3 * row} 3"
    line = f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{y - 10}' y2='{FLOOR}' stroke='#1a1a1a' stroke-dasharray='{dashes}'/>"
    return f"{line}<text x='{x + shift:.1f}' y='{y}' text-anchor='{anchor}'>{text}</text>"


def _axis(low: float, high: float) -> str:
    texts = [(0, "start", f"{low:.1f}"), (WIDTH, "end", f"{high:.1f}")]
    texts.append((WIDTH // 2, "middle", "score (height: square root of the share)"))
    shown = [f"<text x='{x}' y='{FLOOR + 18}' text-anchor='{anchor}'>{text}</text>" for x, anchor, text in texts]
    return f"<line x1='0' x2='{WIDTH}' y1='{FLOOR}' y2='{FLOOR}' stroke='#555'/>{''.join(shown)}"


def _legend(n_normals: int, n_predicted: int) -> str:
    y = FLOOR + 42
    first = f"<rect x='0' y='{y - 10}' width='16' height='10' fill='{NORMAL}'/>"
    second = f"<line x1='240' x2='256' y1='{y - 5}' y2='{y - 5}' stroke='{PREDICTED}' stroke-width='2'/>"
    texts = f"<text x='22' y='{y}'>{n_normals:,} unseen normals</text>"
    return f"{first}{second}{texts}<text x='262' y='{y}'>{n_predicted:,} predictions</text>"
