"""The page as HTML. Everything that comes from outside is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mpfm_kedro.app.learning import Job
from mpfm_kedro.app.limits import MAX_BYTES, MAX_IMAGES, MEGAPIXELS
from mpfm_kedro.app.session import PageImage
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.thresholds import Threshold, decide, describe_guarantee
from mpfm_kedro.reports.pages import SIGNS, STYLE, TEMPLATES
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
    images: Sequence[PageImage], inspector: Inspector, threshold: Threshold, labels: Mapping[str, str] | None
) -> str:
    """The guarantee, the histogram and all images, with decisions by these thresholds.

    Args:
        images: the highest score first.
        inspector: of the model.
        threshold: decides.
        labels: of marked images, by key; None where the model cannot learn.
    """
    scores = [image.prediction.score for image in images]
    decisions = [str(decision) for decision in decide(scores, threshold)]
    counts = Counter(decisions)
    addresses = {sample: f"known/{index}" for index, sample in enumerate(inspector.model.gallery.table["sample_id"])}
    guarantee = describe_guarantee(threshold, inspector.model.calibration.anomaly_scores)
    return TEMPLATES.get_template("app_results.html").render(
        guarantee=f"{guarantee} The model was made on {inspector.card['made']}.",
        histogram=draw_histogram(inspector.normal_scores, scores, threshold),
        counts=", ".join(f"{counts[name]:,} {name}" for name in SIGNS if counts[name]),
        images=list(zip(images, decisions, strict=True)),
        neighbours=lambda found: [
            (addresses[one.sample_id], one.sample_id) for one in found if one.sample_id in addresses
        ],
        labels=labels,
        marks=MARKS,
    )


def draw_learning(marked: Mapping[str, Mapping[str, str]], job: Job, earlier: str | None) -> str:
    """The images to learn, the button that starts it, its progress, and the way back."""
    template = TEMPLATES.get_template("app_learning.html")
    return template.render(marked=marked, marks=MARKS, job=job, earlier=earlier)
