"""BrainMRI: magnetic resonance images, ``no/`` without and ``yes/`` with a tumor.

Suffixes are mixed (.jpg, .JPG, .jpeg, .png): matching one of them would lose half of the anomalies.
"""

from mpfm_kedro.sources.layout import Layout, Rows, subfolders
from mpfm_kedro.sources.source import Counts, Source

CLASSES = {"no": "", "yes": "tumor"}


def _rows(layout: Layout) -> Rows:
    for other in subfolders(layout.folder):
        if all((other / name).is_dir() for name in CLASSES):
            layout.warn("%s repeats the images beside it and is skipped", other)
        elif other.name not in CLASSES:
            raise layout.error(f"unknown folder {other}; expected are no and yes")
    for name, defect_class in CLASSES.items():
        yield from layout.samples(layout.folder / name, defect_class)


SOURCE = Source(
    name="brainmri",
    title="BrainMRI",
    obtain="N. Chakrabarty on Kaggle (Brain MRI Images for Brain Tumor Detection)",
    expected=list(CLASSES),
    counts={"": Counts(train=73, test=25, anomalies={"tumor": 155})},
    rows=_rows,
)
