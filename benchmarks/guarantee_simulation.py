"""Does a guaranteed false-alarm rate hold? Draws of normals whose true rates are known, as a table for the docs.

python benchmarks/guarantee_simulation.py
"""

from __future__ import annotations

import numpy as np

from mpfm_kedro.inspection.thresholds import choose_threshold

DRAWS, CONFIDENCE, CELLS = 10_000, 0.95, 200
CASES = [(59, 0.05), (150, 0.05), (1000, 0.05), (100, 0.01), (299, 0.01), (1000, 0.01), (5000, 0.01), (5000, 0.001)]


def simulate(n: int, rate: float, tied: bool, rng: np.random.Generator) -> dict[str, float]:
    """Draws of n normals with uniform scores; ``tied``: rounded down to a grid of 200 values."""
    kept, alarms, uncertain = [], [], []
    for _ in range(DRAWS):
        scores = rng.uniform(size=n)
        found = choose_threshold(np.floor(scores * CELLS) / CELLS if tied else scores, rate, CONFIDENCE)
        step = 1 / CELLS if tied else 0.0  # P(S > t) = 1 - t - step on the grid
        alarms.append(1 - found.defective - step)
        uncertain.append(found.defective - (found.good or 0.0))
        kept.append(alarms[-1] <= found.rate_guaranteed + 1e-9)
    return {
        "guaranteed": found.rate_guaranteed,
        "held": float(np.mean(kept)),
        "mean rate": float(np.mean(alarms)),
        "uncertain": float(np.mean(uncertain)),
    }


def main() -> None:
    """Print one row per case."""
    rng = np.random.default_rng(0)
    print("| normals | asked | guaranteed | held | held, with ties | mean rate | uncertain |")
    print("|---|---|---|---|---|---|---|")
    for n, rate in CASES:
        found, tied = (simulate(n, rate, ties, rng) for ties in (False, True))
        print(
            f"| {n:,} | {rate:.1%} | {found['guaranteed']:.2%} | {found['held']:.1%} | {tied['held']:.1%} | "
            f"{found['mean rate']:.2%} | {found['uncertain']:.2%} |"
        )


if __name__ == "__main__":
    main()
