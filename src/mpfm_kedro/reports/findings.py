"""Predictions on pages: their words and signs, their style, and the templates, which escape all that they show."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

SIGNS = {"defective": "▲", "uncertain": "◆", "good": "●", "error": "✕"}
SCORES = {  # what each says if it is high
    "g": "the whole image is unlike the normals",
    "a": "some places look like known defects, as the model learned from them",
    "r": "some patches are unlike any patch of a normal",
    "n": "as a whole it is less like normals than like known defects",
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

TEMPLATES = Environment(
    loader=PackageLoader("mpfm_kedro"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
TEMPLATES.globals |= {"signs": SIGNS, "scores": SCORES}
