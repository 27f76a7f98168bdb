"""Table and plot of ``growth.py``."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.figure import Figure

from stage_costs import STAGES, START, WHOLE

Records = list[dict[str, Any]]  # one of each size, smallest first
ROWS = (*STAGES, START, WHOLE)
UNITS = {"seconds": (1.0, "s"), "processor": (1.0, "s"), "memory": (1e9, "GB"), "disk": (1e6, "MB")}
TOO_SMALL = {"seconds": 1.0, "processor": 1.0, "memory": 1e8, "disk": 1e6}  # no exponent below: noise, or a constant
ABOVE_LINEAR = 1.1


def write_report(measured: Records, command: str) -> str:
    """The report as Markdown."""
    last = measured[-1]
    copies = ", ".join(str(one["copies"]) for one in measured)
    images = ", ".join(f"{one['images']:,}" for one in measured)
    lines = [
        "# Growth with the number of images",
        "",
        f"Made by `{command}`, finished on {last['date']}, revision {last['revision']},",
        f"{last['cores']} cores, {last['memory']} GB of memory, {'a' if last['gpu'] else 'no'} GPU.",
        f"ELPV with {copies} copies of every image",
        f"({images} images, at {last['image_size']} px), general setting, M = 10, seed 100, one augmented view of",
        "each anomaly, no CutMix. Seconds are wall time, with reading and writing; *processor* is the time of all",
        "cores, which other work on the machine changes less. Memory is the peak of the process and its children,",
        "without files that are mapped into it; workers without work stay for a minute. *Exponent* is the slope",
        "between the two largest sizes in logarithms: 1 is linear growth; a dash is too little to tell.",
        "",
        *(line for what in UNITS for line in table(measured, what)),
        f"More than linear (exponent above {ABOVE_LINEAR}): {above_linear(measured)}.",
        "",
        "![Time, memory and disk against images](growth.png)",
    ]
    return "\n".join(lines)


def table(measured: Records, what: str) -> list[str]:
    """Seconds, memory or disk: one row for each stage, one column for each size."""
    scale, unit = UNITS[what]
    rows = [[f"{what} [{unit}]", *(f"{one['copies']}×" for one in measured), "exponent"]]
    rows.append(["---"] * len(rows[0]))
    for stage in ROWS:
        cells = [number(one["stages"][stage][what] / scale) for one in measured]
        rows.append([stage, *cells, shown(exponent(measured, stage, what))])
    return [*(f"| {' | '.join(row)} |" for row in rows), ""]


def exponent(measured: Records, stage: str, what: str) -> float:
    """The slope between the two largest sizes; NaN where there is too little to measure."""
    if len(measured) < 2:
        return math.nan
    before, after = measured[-2:]
    values = [one["stages"][stage][what] for one in (before, after)]
    if after["images"] == before["images"] or min(values) <= 0 or max(values) < TOO_SMALL[what]:
        return math.nan
    return math.log(values[1] / values[0]) / math.log(after["images"] / before["images"])


def above_linear(measured: Records) -> str:
    """What grows faster than the number of images."""
    if len(measured) < 2:
        return "not known from one size"
    pairs = [(stage, what) for stage in ROWS for what in UNITS if exponent(measured, stage, what) > ABOVE_LINEAR]
    return ", ".join(f"{what} of {stage}" for stage, what in pairs) or "nothing"


def number(value: float) -> str:
    """Three digits, and no more than three decimals."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else f"{value:.3f}"


def shown(slope: float) -> str:
    """An exponent, or a dash where there is none."""
    return "–" if math.isnan(slope) else f"{slope:.2f}"


def draw(measured: Records) -> Figure:
    """Time, memory and disk against images, both in logarithms, with the line of linear growth."""
    figure = Figure(figsize=(16, 4.6), layout="constrained")
    images = [one["images"] for one in measured]
    for axis, (what, (scale, unit)) in zip(figure.subplots(1, len(UNITS)), UNITS.items(), strict=True):
        for place, stage in enumerate(ROWS):
            values = [one["stages"][stage][what] / scale for one in measured]
            color, width = ("black", 2.5) if stage == WHOLE else (f"C{place}", 1.5)
            if min(values) > 0:
                axis.plot(images, values, marker="o", label=stage, color=color, linewidth=width)
        whole = measured[0]["stages"][WHOLE][what] / scale
        axis.plot(images, [whole * n / images[0] for n in images], "--", color="grey", label="linear growth")
        axis.set(xscale="log", yscale="log", xlabel="images", ylabel=f"{what} [{unit}]")
        axis.set_xticks(images, [f"{n:,}" for n in images], minor=False)
        axis.minorticks_off()
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
