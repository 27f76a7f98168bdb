"""The page as HTML. Everything that comes from outside is escaped."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence

from mpfm_kedro.app.learning import Job
from mpfm_kedro.app.limits import MAX_BYTES, MAX_IMAGES, MEGAPIXELS
from mpfm_kedro.app.session import Inspected
from mpfm_kedro.inspection.inspector import Inspector, Likeness
from mpfm_kedro.inspection.thresholds import Promise, decide, describe, miss_rate
from mpfm_kedro.reports.findings import SIGNS, STYLE, badge, likenesses, reason, share_table
from mpfm_kedro.reports.markup import paragraphs
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
    name = html.escape(" ".join(filter(None, [str(card["dataset"]), str(card["category"])])))
    head = (
        "<meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<meta name='token' content='{token}'><title>Inspection: {name}</title>"
        "<link rel='icon' href='data:,'><link rel='stylesheet' href='style.css'><script src='page.js' defer></script>"
    )
    body = [
        f"<h1>Inspection: {name}</h1>",
        "<p class='small'>Images stay on this machine.</p>",
        _drop(),
        "" if folders is None else _choose_folder(folders),
        "<p id='message' role='status'></p>",
        _rate(rate),
        "<section id='learning'></section><section id='results'></section>",
    ]
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(body)}</body></html>"


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
    made = f"The model was made on {inspector.card['made']}."
    parts = [
        *paragraphs([f"{describe(promised, missed)} {made}"]),
        draw_histogram(inspector.normal_scores, scores, promised),
    ]
    if images:
        said = ", ".join(f"{counts[name]:,} {name}" for name in SIGNS if counts[name])
        parts.append(f"<div class='row'><h2>{len(images):,} images: {said}</h2>{_button('clear', 'Clear')}</div>")
    places = {sample: place for place, sample in enumerate(inspector.model.gallery.table["sample_id"])}
    for image, decision in zip(images, decisions, strict=True):
        parts.append(_article(image, decision, places, labels))
    return "".join(parts)


def draw_learning(marked: Mapping[str, Mapping[str, str]], job: Job, earlier: str | None) -> str:
    """The images to learn, the button that starts it, its progress, and the way back."""
    parts, running = ["<h2>To learn</h2>"], job.state == "running"
    for label, words in MARKS.items():
        for key, name in marked[label].items():
            undo = _button(f"images/{key}/unmark", "Undo", running)
            parts.append(f"<div class='row'><span class='name'>{html.escape(name)}, {words}</span>{undo}</div>")
    if not any(marked.values()):
        parts += paragraphs(["No image is marked. Mark a missed defect or a false alarm below."])
    buttons = [_button("learn", "Learn these images", running or not any(marked.values()))]
    if earlier:
        buttons.append(_button("undo", f"Undo: back to the model of {earlier}", running))
    parts.append(f"<div class='row'>{''.join(buttons)}</div>")
    if job.state:
        words = {"running": "is under way …", "done": "is done.", "failed": "has failed."}[job.state]
        log = html.escape("\n".join(job.lines))
        parts.append(f"<p id='job' data-state='{job.state}'>{html.escape(job.name)} {words}</p><pre>{log}</pre>")
    return "".join(parts)


def _drop() -> str:
    suffixes = ",".join(sorted(IMAGE_SUFFIXES))
    limits = f"up to {MAX_IMAGES} images of at most {MAX_BYTES / 1e6:g} MB and {MEGAPIXELS:g} megapixels"
    choose = f"<input id='files' type='file' multiple accept='{suffixes}' data-bytes='{MAX_BYTES}'>"
    return f"<div id='drop'><label>Drop images here, or choose files: {choose}</label><br><small>{limits}</small></div>"


def _choose_folder(folders: Sequence[str]) -> str:
    options = "".join(f"<option value='{html.escape(name)}'>" for name in folders)
    field = f"<input id='folder' list='folders' value='.'><datalist id='folders'>{options}</datalist>"
    return f"<div class='row'><label>Or a folder: {field}</label><button id='inspect'>Inspect it</button></div>"


def _rate(rate: float) -> str:
    slider = "<input id='slider' type='range' min='-3' max='-0.7' step='0.05' aria-label='False-alarm rate'>"
    number = f"<input id='rate' type='number' min='0.01' max='50' step='any' value='{100 * rate:g}'>"
    return f"<div class='row'><label>False-alarm rate {number} %</label>{slider}</div>"


def _article(image: Inspected, decision: str, places: Mapping[str, int], labels: Mapping[str, str] | None) -> str:
    found, name = image.prediction, html.escape(image.name)
    facts = [f"<p>{badge(decision)} <span class='name'>{name}</span></p>"]
    facts.append(f"<p>score <b>{found.score:.2f}</b>, p-value {found.p_value:.2g}{_area(image)}</p>")
    if image.before:
        facts.append(f"<p>Before, the model said {image.before[1]}, score {image.before[0]:.2f}.</p>")
    if decision != "good":
        facts.append(f"<p>{reason(found.shares)}</p>")
    near = likenesses(_addresses(image.normals, places), _addresses(image.anomalies, places))
    why = f"{share_table(found.shares)}<p>Nearest normals and, after the line, nearest known anomaly:</p>{near}"
    facts.append(f"<details><summary>Why</summary>{why}</details>")
    if labels is not None:
        facts.append(_marks(image.key, decision, labels.get(image.key)))
    pictures = "".join(_picture(f"images/{image.key}/{kind}", f"{kind} of {name}") for kind in ("picture", "overlay"))
    start = f"<article data-decision='{decision}' data-key='{image.key}'>"
    return f"{start}<div class='pictures'>{pictures}</div><div class='facts'>{''.join(facts)}</div></article>"


def _picture(address: str, text: str) -> str:
    return f"<a href='{address}'><img loading='lazy' src='{address}' alt='{text}'></a>"


def _area(image: Inspected) -> str:
    regions = image.prediction.regions
    if not regions:
        return ""
    left, upper, right, lower = regions[0].box
    share = sum(each.area for each in regions)
    return f", {share:.1%} of the image stands out, most at x {left}–{right}, y {upper}–{lower}"


def _marks(key: str, decision: str, label: str | None) -> str:
    """What people may say: that a decision was wrong, or that it was not."""
    if label:
        return f"<div class='row'>Marked as {MARKS[label]}. {_button(f'images/{key}/unmark', 'Undo')}</div>"
    offered = {"good": ["anomaly"], "defective": ["normal"], "uncertain": ["anomaly", "normal"]}[decision]
    words = {"anomaly": "It is a defect", "normal": "It is normal"}
    buttons = [_button(f"images/{key}/mark?label={each}", words[each]) for each in offered]
    return f"<div class='row'>{''.join(buttons)}</div>"


def _addresses(known: Sequence[Likeness], places: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(f"known/{places[each.sample_id]}", each.sample_id) for each in known if each.sample_id in places]


def _button(address: str, text: str, disabled: bool = False) -> str:
    return f"<button data-post='{html.escape(address)}'{' disabled' * disabled}>{html.escape(text)}</button>"
