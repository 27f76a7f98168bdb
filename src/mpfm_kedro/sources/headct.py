"""HeadCT: slices of computed tomography; ``labels.csv`` (id, hemorrhage) tells which show a hemorrhage.

The images are ``head_ct/head_ct/<NNN>.png``, the id with leading zeros.
"""

import pandas as pd

from mpfm_kedro.sources.layout import Layout, Rows
from mpfm_kedro.sources.source import Counts, Source


def _rows(layout: Layout) -> Rows:
    labels = read_labels(layout)
    images = {file.stem: file for file in layout.images(layout.folder / "head_ct")}
    for name, label in labels.items():
        if name not in images:
            raise layout.error(f"head_ct/head_ct/{name}.png is missing in {layout.folder}, and labels.csv names it")
        yield layout.sample(images[name], "hemorrhage" if label else "")
    for name in sorted(set(images) - set(labels)):
        layout.warn("%s has no line in labels.csv and is skipped", images[name])


def read_labels(layout: Layout) -> dict[str, int]:
    """The label of each image by its name without suffix; the published file has blanks after its commas."""
    file = layout.folder / "labels.csv"
    try:
        table = pd.read_csv(file, skipinitialspace=True, dtype=str, keep_default_na=False)
        table = table.rename(columns=str.strip)[["id", "hemorrhage"]].apply(lambda column: column.str.strip())
    except (OSError, ValueError, KeyError) as error:
        raise layout.error(f"cannot read {file}, expected are id and hemorrhage: {error}") from error
    if table.empty:
        raise layout.error(f"{file} has no line below its header")
    wrong = table[~(table["id"].str.fullmatch(r"\d+") & table["hemorrhage"].isin(["0", "1"]))]
    if len(wrong):
        raise layout.error(f"{file} has a line {', '.join(wrong.iloc[0])!r}; expected are a number and 0 or 1")
    names = table["id"].str.zfill(3)
    if names.duplicated().any():
        raise layout.error(f"{file} has the id {names[names.duplicated()].iloc[0]} twice")
    return dict(zip(names, table["hemorrhage"].astype(int), strict=True))


SOURCE = Source(
    name="headct",
    title="HeadCT",
    obtain="F. Kitamura on Kaggle (Head CT - hemorrhage)",
    expected=["labels.csv", "head_ct"],
    counts={"": Counts(train=75, test=25, anomalies={"hemorrhage": 100})},
    rows=_rows,
)
