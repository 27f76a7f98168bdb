"""Misses and false alarms of a setting, as parts of its page."""

from __future__ import annotations

import base64
import html
from typing import Any

import pandas as pd

from mpfm_kedro.reports.markup import data_table, paragraphs

EXPLAINED = (
    "Of the first seed: the anomalies of each class that are easiest to miss, and the normal images that are nearest "
    "to a false alarm. Colours show where a score comes from, on a scale that unseen normals set. Below each image is "
    "what the threshold decides. A name opens the file, as long as images and results stay where they are."
)
POINTS = (
    "An image whose score is above a threshold is called defective. The threshold is set for the false-alarm rate of "
    "inspection.false_alarm_rate, or the lowest that so few normals can promise. What it does on the test images of "
    "the first seed: promised: the share of normals that are called "
    "defective at most, with the confidence of inspection.confidence, by the unseen normals of training. false alarms: "
    "the share that was found. precision: the share of anomalies among what is called defective. recall: the share of "
    "anomalies that are called defective."
)

HEADINGS = {"missed": "anomalies{} with the lowest scores", "false alarm": "normals with the highest scores"}


def show_mistakes(mistakes: pd.DataFrame, operating_points: pd.DataFrame) -> list[str]:
    """Table of precision and recall, then images of every cell."""
    table = operating_points.drop(columns="run").copy()
    for name in ("promised", "false_alarms", "precision", "recall"):
        table[name] = [f"{value:.1%}" if value == value else "undefined" for value in table[name]]
    table = table.rename(columns={"known_class": "known class", "n_anomalies": "M", "false_alarms": "false alarms"})
    parts = ["<h2>Mistakes</h2>", *paragraphs([POINTS]), data_table(table), *paragraphs([EXPLAINED])]
    for (known, number), own in mistakes.groupby(["known_class", "n_anomalies"], sort=False):
        title = f"known class {known}, M = {number}" if known else f"M = {number}"
        for (kind, defect), part in own.groupby(["kind", "defect_class"], sort=False):
            heading = HEADINGS[str(kind)].format(f" of class {defect}" if defect else "")
            shown = "".join(_figure(row) for row in part.to_dict("records"))
            parts.append(f"<h3>{html.escape(f'{title}: {heading}')}</h3><div class='thumbnails'>{shown}</div>")
    return parts


def _figure(row: dict[Any, Any]) -> str:
    source = base64.b64encode(row["image"]).decode()
    name = html.escape(str(row["sample"]))
    file = f"<a href='{html.escape(str(row['link']))}'>{name}</a>"
    caption = f"{file}<br>score {row['score']:.2f}, {html.escape(str(row['decision']))}"
    image = f"<img alt='{name}' src='data:image/jpeg;base64,{source}'>"
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
