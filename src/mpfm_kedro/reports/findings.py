"""What a model says of an image, as parts of a page: decision, why, and images that are like it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping

SIGNS = {"defective": "▲", "uncertain": "◆", "good": "●", "error": "✕"}
SCORES = {  # name in HTML, and what it says if it is high
    "g": ("S<sub>g</sub>", "the whole image is unlike the normals"),
    "a": ("S<sub>a</sub>", "some places look like known defects, as the model learned from them"),
    "r": ("S<sub>r</sub>", "some patches are unlike any patch of a normal"),
    "n": ("S<sub>n</sub>", "as a whole it is less like normals than like known defects"),
}
# colours of Okabe and Ito, which differ in lightness too; the sign and the word say the same
STYLE = """
:root{color-scheme:light}
*{box-sizing:border-box}
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;max-width:72em;padding:1em;color:#1a1a1a;background:#fff}
h1{font-size:1.5em}h2{font-size:1.15em;margin:1.6em 0 .4em}
a{color:#0a5a8a}img,svg{max-width:100%}
table{border-collapse:collapse}td,th{padding:.25em .7em .25em 0;text-align:left;vertical-align:top}
.wide{overflow-x:auto}
.badge{display:inline-block;padding:.05em .6em;border-radius:1em;font-weight:600;white-space:nowrap}
.defective{background:#b34700;color:#fff}.uncertain{background:#f5e663;color:#1a1a1a}
.good{background:#d5e9f5;color:#003f63}.error{background:#ddd;color:#1a1a1a}
.filters{display:flex;flex-wrap:wrap;gap:.5em;margin:1em 0}
button{font:inherit;padding:.3em .8em;border:1px solid #888;border-radius:.4em;background:#f5f5f5;cursor:pointer}
button[aria-pressed=true]{background:#1a1a1a;color:#fff}
button:disabled{color:#888;cursor:default}
article{display:flex;flex-wrap:wrap;gap:1em;padding:.9em 0;border-top:1px solid #ccc}
article[hidden]{display:none}
.pictures{display:flex;gap:.5em}.pictures figure,.likes figure{margin:0}
.pictures img{width:11em;height:11em;object-fit:contain;background:#eee}
.facts{flex:1 1 20em;min-width:0}.facts p{margin:.3em 0}
p,.name{overflow-wrap:anywhere}
figcaption,.small{font-size:.85em;color:#555}figcaption{overflow-wrap:anywhere}sub{line-height:0}
.likes{display:flex;flex-wrap:wrap;gap:.6em}.likes figure{width:6em}.likes img{width:6em;height:6em;object-fit:contain}
.likes .known{border-left:3px solid #b34700;padding-left:.6em;width:6.9em}
svg.bar{max-width:none}
@media(max-width:30em){.pictures img{width:44vw;height:44vw}}
"""


def badge(decision: str) -> str:
    """A decision in a word, a sign and a colour."""
    return (
        f"<span class='badge {decision}'>{SIGNS[decision]} {'unreadable' if decision == 'error' else decision}</span>"
    )


def reason(shares: Mapping[str, float]) -> str:
    """The score that adds most, in a sentence."""
    part = max(shares, key=lambda name: shares[name])
    name, words = SCORES[part]
    return f"{name} adds most ({shares[part]:+.1f}): {words}."


def share_table(shares: Mapping[str, float]) -> str:
    """What each of the four scores adds, as bars around zero, and what each of them means."""
    largest = max(1e-9, *(abs(value) for value in shares.values()))
    rows = []
    for part, (name, words) in SCORES.items():
        bar = _bar(shares[part], 50 * abs(shares[part]) / largest)
        rows.append(f"<tr><th>{name}</th><td>{shares[part]:+.2f}</td><td>{bar}</td><td>{words}</td></tr>")
    return f"<div class='wide'><table class='small'>{''.join(rows)}</table></div>"


def likenesses(normals: Iterable[tuple[str, str]], anomalies: Iterable[tuple[str, str]]) -> str:
    """The nearest normals and the nearest known anomaly, each the address of its picture and its caption."""
    figures = [_figure("normal", *each) for each in normals] + [_figure("known", *each) for each in anomalies]
    return f"<div class='likes'>{''.join(figures)}</div>" if figures else ""


def _figure(kind: str, address: str, caption: str) -> str:
    shown = html.escape(caption)
    picture = f"<img loading='lazy' src='{html.escape(address)}' alt='{shown}'>"
    return f"<figure class='{kind}'>{picture}<figcaption>{shown}</figcaption></figure>"


def _bar(value: float, width: float) -> str:
    left, colour = (60.0, "#b34700") if value >= 0 else (60 - width, "#56a0c8")
    bar = f"<rect x='{left:.1f}' y='3' width='{width:.1f}' height='10' fill='{colour}'/>"
    zero = "<line x1='60' x2='60' y1='0' y2='16' stroke='#555'/>"
    return f"<svg class='bar' width='120' height='16' role='img' aria-label='{value:+.2f}'>{bar}{zero}</svg>"
