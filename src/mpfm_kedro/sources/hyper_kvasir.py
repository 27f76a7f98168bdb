"""Hyper-Kvasir: endoscopy of the upper gastro-intestinal tract.

``labeled-images/upper-gi-tract/anatomical-landmarks/<class>`` are the normals, pooled;
``pathological-findings/<class>`` the classes of anomalies. The rest of the dataset is not used.
"""

from mpfm_kedro.sources.layout import Layout, Rows
from mpfm_kedro.sources.source import Counts, Source

TRACT = "labeled-images", "upper-gi-tract"
LANDMARKS = ["pylorus", "retroflex-stomach", "z-line"]
FINDINGS = {"barretts": 41, "barretts-short-segment": 53, "esophagitis-a": 403, "esophagitis-b-d": 260}


def _rows(layout: Layout) -> Rows:
    for images in layout.class_folders(layout.inner(*TRACT, "anatomical-landmarks"), LANDMARKS).values():
        yield from layout.samples(images)
    for name, images in layout.class_folders(layout.inner(*TRACT, "pathological-findings"), FINDINGS).items():
        yield from layout.samples(images, name)


SOURCE = Source(
    name="hyper_kvasir",
    title="Hyper-Kvasir",
    obtain="Simula Research Laboratory (Hyper-Kvasir, the labelled images)",
    expected=["labeled-images"],
    counts={"": Counts(train=2021, test=674, anomalies=FINDINGS)},
    rows=_rows,
)
