"""The card of a production model as a page."""

from __future__ import annotations

import html
import json
from typing import Any

from mpfm_kedro.inspection.model import Model
from mpfm_kedro.reports.markup import page, paragraphs


def write_card(model: Model) -> str:
    """What a model is, what it was made from and what is promised of it."""
    card = model.card
    name = " ".join(filter(None, [card["dataset"], card["category"]]))
    shown = {key: value for key, value in card.items() if key not in ("promise_in_words", "files")}
    rows = "".join(f"<tr><th>{html.escape(key)}</th><td>{_shown(value)}</td></tr>" for key, value in shown.items())
    return page(f"Model card: {name}", [*paragraphs([card["promise_in_words"]]), f"<table>{rows}</table>"])


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"<pre>{html.escape(json.dumps(value, indent=1, ensure_ascii=False))}</pre>"
    return html.escape(str(value))
