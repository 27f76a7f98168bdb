"""The card of a production model as a page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from mpfm_kedro.inspection.collection import LABELS
from mpfm_kedro.inspection.model import Model
from mpfm_kedro.inspection.thresholds import item_scores, least_normals, promise
from mpfm_kedro.reports.findings import STYLE
from mpfm_kedro.reports.markup import data_table, folded, page, paragraphs

RATES = (0.001, 0.005, 0.01, 0.02, 0.05)
SETTINGS = {
    "general": "known defects of all classes, tested on others of these classes",
    "hard": "tested on defects of classes that the model does not know",
}


def write_card(model: Model) -> str:
    """What a model is, what it was made from and what is promised of it."""
    card = model.card
    name = " ".join(filter(None, [card["dataset"], card["category"]]))
    parts = [
        *_section("What is promised", paragraphs([card["promise_in_words"]])),
        *_section("Thresholds for other false-alarm rates", _thresholds(model)),
        *_section("What it has learned from", _data(card)),
        *_section("Taught later", _learned(card["learned"])),
        *_section("Evaluation of the method on this dataset", _evaluation(card["evaluation"])),
        *_section("Backbone", [_facts(_backbone(each)) for each in card["backbones"]]),
        *_section("How an image is prepared", paragraphs([_preparation(card)])),
        *_section("Files", [folded("Digests (SHA-256)", _facts(card["files"])), folded("All of the card", _all(card))]),
    ]
    return page(f"Model card: {name}", parts, STYLE)


def _section(title: str, parts: list[str]) -> list[str]:
    return [f"<h2>{html.escape(title)}</h2>", *parts]


def _thresholds(model: Model) -> list[str]:
    normals = item_scores(model.calibration.normal_scores, model.calibration.normal_items)
    confidence = model.card["promise"]["confidence"]
    rows = []
    for rate in RATES:
        found = promise(normals, rate, confidence)
        needed = f"no: {least_normals(rate, confidence):,} unseen normals are needed"
        rows.append(
            {
                "rate": _percent(rate),
                "promised": "yes" if found.kept else needed,
                "can be promised": _percent(found.rate_promised),
                "on average": _percent(found.rate_expected),
                "defective above": f"{found.defective:.3f}",
                "good up to": "–" if found.good is None else f"{found.good:.3f}",
            }
        )
    note = (
        f"With {_percent(confidence)} confidence, from {len(normals):,} unseen normal items. Scores between the two "
        "thresholds are uncertain. Another rate needs no new model: --params=inspection.false_alarm_rate=0.02"
    )
    return [data_table(pd.DataFrame(rows)), *paragraphs([note])]


def _data(card: Mapping[str, Any]) -> list[str]:
    data = card["data"]
    classes = ", ".join(f"{name} {number:,}" for name, number in data["classes"].items())
    facts = {
        "dataset": " ".join(filter(None, [card["dataset"], card["category"]])),
        "normals": f"{data['normals']:,}",
        "known anomalies": f"{data['anomalies']:,}" + (f" ({classes})" if classes else ""),
        "licence of the images": data["licence"],
        "digest of the data": data["digest"],
        "made": f"{card['made']}, seed {card['seed']}, revision {card['revision']}",
    }
    return [_facts(facts)]


def _learned(learned: list[dict[str, Any]]) -> list[str]:
    if not learned:
        return paragraphs(["Nothing: no missed defect and no false alarm was added."])
    words = {number: name for name, number in LABELS.items()}
    rows = [{"when": each["added"], "as": words[each["label"]], "image": each["origin"]} for each in learned]
    return [data_table(pd.DataFrame(rows))]


def _evaluation(evaluation: Mapping[str, Any]) -> list[str]:
    if not evaluation:
        return paragraphs(["None yet: kedro run --pipelines=general_setting (or hard_setting) measures the method."])
    rows = []
    for setting, metrics in evaluation.items():
        for names, values in _leaves(metrics):
            auc, ap = (f"{values[f'{name}_mean']:.3f} ± {values[f'{name}_std']:.3f}" for name in ("auc", "ap"))
            rows.append({"setting": setting, "method and data": ", ".join(names), "AUC": auc, "AP": ap})
    notes = [f"{name}: {words}." for name, words in SETTINGS.items() if name in evaluation]
    measured = "Measured on images that were kept back; this model has learned from all of them."
    return [data_table(pd.DataFrame(rows)), *paragraphs([measured, *notes])]


def _leaves(
    metrics: Mapping[str, Any], names: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The figures at the ends of nested metrics, with the names on the way there."""
    for name, value in metrics.items():
        if isinstance(value, dict) and "auc_mean" in value:
            yield (*names, name), value
        elif isinstance(value, dict):
            yield from _leaves(value, (*names, name))


def _backbone(spec: Mapping[str, Any]) -> dict[str, str]:
    return {
        "network": spec["backbone"],
        "licence of the weights": spec["licence"],
        "digest of the weights": spec["weights_digest"],
        "layers": f"{', '.join(spec['layers'])} (pooled), {', '.join(spec['map_layers'])} (heat map)",
        "image size": f"{spec['image_size']} × {spec['image_size']} pixels, {spec['precision']}",
    }


def _preparation(card: Mapping[str, Any]) -> str:
    sizes = " and ".join(sorted({f"{each['image_size']} × {each['image_size']}" for each in card["backbones"]}))
    deep = card["pixel_range"]
    depth = f"values {deep} become 0 to 255" if deep else "eight bits per channel; deeper images are refused"
    return (
        f"Turned upright as EXIF says, RGB without colour profiles, {depth}; transparent pixels become black. The "
        f"whole image is resized to {sizes} pixels, whatever its proportions."
    )


def _facts(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td class='name'>{html.escape(str(value))}</td></tr>"
        for name, value in values.items()
    )
    return f"<div class='wide'><table>{rows}</table></div>"


def _all(card: Mapping[str, Any]) -> str:
    text = json.dumps({name: value for name, value in card.items() if name != "files"}, indent=1, ensure_ascii=False)
    return f"<pre class='wide'>{html.escape(text)}</pre>"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
