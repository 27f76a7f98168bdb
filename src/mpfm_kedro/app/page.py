"""The page as HTML. Everything that comes from outside is escaped."""

from collections import Counter
from collections.abc import Mapping, Sequence

from mpfm_kedro.app.learning import Job
from mpfm_kedro.app.session import MAX_BYTES, MAX_IMAGES, MEGAPIXELS, PageImage
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.thresholds import Threshold, decide
from mpfm_kedro.reports.pages import SIGNS, render
from mpfm_kedro.reports.predictions import draw_histogram
from mpfm_kedro.sources.layout import IMAGE_SUFFIXES

MARKS = {"anomaly": "a missed defect", "normal": "a false alarm"}


def draw_page(card: Mapping[str, object], rate: float, token: str, folders: Sequence[str] | None) -> str:
    """The whole page; its results and the state of learning are filled in by the script."""
    return render(
        "app_page.html",
        name=" ".join(filter(None, [str(card["dataset"]), str(card["category"])])),
        token=token,
        rate=rate,
        folders=folders,
        suffixes=",".join(sorted(IMAGE_SUFFIXES)),
        max_bytes=MAX_BYTES,
        limits=f"up to {MAX_IMAGES} images of at most {MAX_BYTES / 1e6:g} MB and {MEGAPIXELS:g} megapixels",
    )


def draw_results(
    images: Sequence[PageImage], inspector: Inspector, threshold: Threshold, labels: Mapping[str, str] | None
) -> str:
    """The guarantee, the histogram and all images, the highest score first, with decisions by these thresholds.

    ``labels`` are those of marked images, by key; None where the model cannot learn.
    """
    scores = [image.prediction.score for image in images]
    decisions = decide(scores, threshold, [image.prediction.likeness for image in images]).tolist()
    counts = Counter(decisions)
    addresses = {sample: f"known/{index}" for index, sample in enumerate(inspector.model.gallery.table["sample_id"])}
    return render(
        "app_results.html",
        guarantee=f"{inspector.model.calibration.describe(threshold)} The model was made on {inspector.card['made']}.",
        histogram=draw_histogram(inspector.normal_scores, scores, threshold),
        counts=", ".join(f"{counts[name]:,} {name}" for name in SIGNS if counts[name]),
        alike=threshold.alike,
        rarity=inspector.model.calibration.describe_parts,
        images=list(zip(images, decisions, strict=True)),
        neighbours=lambda found: [
            (addresses[one.sample_id], one.sample_id) for one in found if one.sample_id in addresses
        ],
        labels=labels,
        marks=MARKS,
    )


def draw_learning(marked: Mapping[str, Mapping[str, str]], job: Job, earlier: str | None) -> str:
    """The images to learn, the button that starts it, its progress, and the way back."""
    return render("app_learning.html", marked=marked, marks=MARKS, job=job, earlier=earlier)
