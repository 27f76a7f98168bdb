"""The page as HTML. Everything that comes from outside is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mpfm_kedro.app.learning import Job
from mpfm_kedro.app.limits import MAX_BYTES, MAX_IMAGES, MEGAPIXELS
from mpfm_kedro.app.session import Inspected
from mpfm_kedro.inspection.inspector import Inspector, Likeness
from mpfm_kedro.inspection.thresholds import Promise, decide, describe, miss_rate
from mpfm_kedro.reports.findings import SIGNS, STYLE, TEMPLATES
from mpfm_kedro.reports.score_histogram import draw_histogram
from mpfm_kedro.sources.layout import IMAGE_SUFFIXES

MARKS = {"anomaly": "a missed defect", "normal": "a false alarm"}
APP_STYLE = """
#drop{border:2px dashed #888;border-radius:.6em;padding:1.2em;margin:1em 0;text-align:center}
#drop.over{background:#d5e9f5}
#message{min-height:1.5em;color:#8a2c00;white-space:pre-line}
.row{display:flex;flex-wrap:wrap;gap:.6em;align-items:center;margin:.6em 0}
input[type=range]{flex:1 1 14em}input[type=number]{width:6em}input{font:inherit}
pre{background:#f2f2f2;padding:.7em;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85em}
"""
CSS = STYLE + APP_STYLE


def draw_page(card: Mapping[str, object], rate: float, token: str, folders: Sequence[str] | None) -> str:
    """The whole page; its results and the state of learning are filled in by the script."""
    return TEMPLATES.get_template("app_page.html").render(
        name=" ".join(filter(None, [str(card["dataset"]), str(card["category"])])),
        token=token,
        rate=rate,
        folders=folders,
        suffixes=",".join(sorted(IMAGE_SUFFIXES)),
        max_bytes=MAX_BYTES,
        limits=f"up to {MAX_IMAGES} images of at most {MAX_BYTES / 1e6:g} MB and {MEGAPIXELS:g} megapixels",
    )


def draw_results(
    images: Sequence[Inspected], inspector: Inspector, promised: Promise, labels: Mapping[str, str] | None
) -> str:
    """What is promised, the histogram and all images, with decisions by these thresholds.

    Args:
        images: the highest score first.
        inspector: of the model.
        promised: the thresholds.
        labels: of images that are marked, by key; None where the model cannot learn.
    """
    known = inspector.model.calibration.anomaly_scores
    missed = miss_rate(known, promised.defective, promised.confidence) if len(known) else None
    scores = [image.prediction.score for image in images]
    decisions = [str(each) for each in decide(scores, promised)]
    counts = Counter(decisions)
    places = {sample: place for place, sample in enumerate(inspector.model.gallery.table["sample_id"])}
    return TEMPLATES.get_template("app_results.html").render(
        promise=f"{describe(promised, missed)} The model was made on {inspector.card['made']}.",
        histogram=draw_histogram(inspector.normal_scores, scores, promised),
        counts=", ".join(f"{counts[name]:,} {name}" for name in SIGNS if counts[name]),
        images=[
            (image, decision, _area(image), _addresses(image.normals, places), _addresses(image.anomalies, places))
            for image, decision in zip(images, decisions, strict=True)
        ],
        labels=labels,
        marks=MARKS,
    )


def draw_learning(marked: Mapping[str, Mapping[str, str]], job: Job, earlier: str | None) -> str:
    """The images to learn, the button that starts it, its progress, and the way back."""
    template = TEMPLATES.get_template("app_learning.html")
    return template.render(marked=marked, marks=MARKS, job=job, earlier=earlier)


def _area(image: Inspected) -> str:
    regions = image.prediction.regions
    if not regions:
        return ""
    left, upper, right, lower = regions[0].box
    share = sum(each.area for each in regions)
    return f", {share:.1%} of the image stands out, most at x {left}–{right}, y {upper}–{lower}"


def _addresses(known: Sequence[Likeness], places: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(f"known/{places[each.sample_id]}", each.sample_id) for each in known if each.sample_id in places]
