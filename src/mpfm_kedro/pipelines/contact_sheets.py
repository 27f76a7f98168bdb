"""Contact sheets: what the classes of a dataset look like, and which images repeat each other."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mpfm_kedro.images.loading import ImageLoader

CELL = 1.5  # inches
EXAMPLES = 3
FEW_CATEGORIES = 3
SETS_SHOWN = 12
SETS_IN_A_ROW = 3


def draw_contact_sheet(samples: pd.DataFrame, images: ImageLoader) -> Figure:
    """Normals in the first column, each class of anomalies in one of its own; categories are rows.

    Few categories have three rows of examples each, many have one.
    """
    usable = samples[samples["problem"] == ""].sort_values(["category", "label", "defect_class", "sample_id"])
    examples = EXAMPLES if usable["category"].nunique() <= FEW_CATEGORIES else 1
    by_category = [part.groupby(["label", "defect_class"]) for _, part in usable.groupby("category")]
    axes, figure = _grid(len(by_category) * examples, max(classes.ngroups for classes in by_category))
    for row, classes in enumerate(by_category):
        for column, ((label, defect_class), part) in enumerate(classes):
            name = f"{defect_class if label else 'normal'} ({len(part)})"
            positions = np.unique(np.linspace(0, len(part) - 1, examples).astype(int))
            for number, (_, sample) in enumerate(part.iloc[positions].iterrows()):
                _show(axes[row * examples + number, column], sample, images, "" if number else name)
        if category := next(iter(classes))[1]["category"].iloc[0]:
            axes[row * examples, 0].set_ylabel(category, fontsize=7)
    return figure


def draw_duplicate_sheet(repeated_images: pd.DataFrame, images: ImageLoader) -> Figure:
    """The first sets of repeated images, two of each side by side; those across labels, then splits, come first."""
    if repeated_images.empty:
        figure = Figure(figsize=(6, 1.5))
        figure.text(0.5, 0.5, "No repeated images, neither exactly nor nearly.", ha="center", va="center")
        return figure
    across = repeated_images.groupby("set", sort=False)[["label", "split"]].nunique()
    across = across.sort_values(["label", "split"], ascending=False, kind="stable")
    shown = list(across.index[:SETS_SHOWN])
    axes, figure = _grid(-(-len(shown) // SETS_IN_A_ROW), 2 * min(SETS_IN_A_ROW, len(shown)), title_lines=2)
    for number, name in enumerate(shown):
        members = repeated_images[repeated_images["set"] == name]
        distinct = members if name.startswith("exact") else members.drop_duplicates(["content_hash", "crop"])
        others = [distinct.drop_duplicates(by) for by in ("label", "split")]
        pair = pd.concat([*others, distinct]).drop_duplicates("sample_id").iloc[:2]
        row, column = divmod(number, SETS_IN_A_ROW)
        for side, (_, sample) in enumerate(pair.iterrows()):
            title = f"{name} ({len(members)} images): {sample['split']}\n{sample['sample_id'][-28:]}"
            _show(axes[row, 2 * column + side], sample, images, title)
    return figure


def _grid(rows: int, columns: int, title_lines: int = 1) -> tuple[np.ndarray, Figure]:
    """Cells without frames, at fixed places: layout engines are slow on a hundred of them."""
    height = CELL + 0.13 * title_lines
    figure = Figure(figsize=(CELL * columns + 0.4, height * rows + 0.2), facecolor="0.9")
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(0.3 / figure.get_figwidth(), 0, 1, 1 - 0.3 / figure.get_figheight(), 0.06, 0.2)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[], frame_on=False)
    return axes, figure


def _show(axis: Axes, sample: pd.Series, images: ImageLoader, title: str) -> None:
    named = sample["path"], sample["crop"], sample["content_hash"]
    axis.imshow(images.thumbnail(*named, sample.get("pixel_range", "")))
    axis.set_title(title, fontsize=6, pad=2)
