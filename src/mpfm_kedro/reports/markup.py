"""Tables and figures as Markdown and as HTML pages."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Iterable

import pandas as pd
from matplotlib.figure import Figure

from mpfm_kedro.reports.layout import Entry, Table

STYLE = (
    "body{font:16px/1.5 sans-serif;margin:0 auto;padding:1em;max-width:72em}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left;white-space:nowrap}"
    "tr+tr td{border-top:1px solid #ddd}.wide{overflow-x:auto}img{max-width:100%;height:auto}"
    ".panels{display:grid;gap:1em;grid-template-columns:repeat(auto-fit,minmax(min(100%,26em),1fr))}"
    ".thumbnails{display:flex;flex-wrap:wrap;gap:1em}figure{margin:0;max-width:14em;overflow-wrap:anywhere}"
    ".panels img{width:100%}dt{font-weight:bold}dd{margin:0 0 .5em 1em}summary{cursor:pointer}"
)


def as_markdown(tables: list[Table], remarks: list[str]) -> str:
    """Tables under their titles, then remarks."""
    blocks = []
    for table in tables:
        lines = [_line(table.header), _line(["---"] * len(table.header))]
        for section in table.sections:
            if section.heading:
                lines.append(_line([f"*{section.heading}*", *[""] * (len(table.header) - 1)]))
            lines += [_line([_emphasised(entry, "**{}**", _escaped) for entry in row]) for row in section.rows]
        blocks += [f"## {table.title}", "\n".join(lines), *table.notes]
    return "\n\n".join([*blocks, *filter(None, remarks)]) + "\n"


def as_page(title: str, tables: list[Table], remarks: list[str], figures: dict[str, Figure]) -> str:
    """Tables, remarks and figures as a self-contained HTML page."""
    parts = []
    for table in tables:
        parts += [f"<h2>{html.escape(table.title)}</h2>{_html_table(table)}", *paragraphs(table.notes)]
    return page(title, [*parts, *paragraphs(remarks), *embedded(figures)])


def page(title: str, parts: Iterable[str], style: str = STYLE) -> str:
    """A self-contained HTML page of parts that are HTML."""
    name = html.escape(title)
    phone = "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    head = f"<meta charset='utf-8'>{phone}<title>{name}</title><style>{style}</style>"
    body = f"<h1>{name}</h1>{''.join(parts)}"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>"


def paragraphs(texts: Iterable[str]) -> list[str]:
    """Each text that is not empty as a paragraph."""
    return [f"<p>{html.escape(text)}</p>" for text in texts if text]


def embedded(figures: dict[str, Figure]) -> list[str]:
    """Figures under their headings, inside of the page."""
    return [f"<h2>{html.escape(name)}</h2>{_image(name, figure)}" for name, figure in figures.items()]


def gallery(heading: str, explanation: str, panels: Iterable[tuple[str, Figure]]) -> str:
    """Images side by side as far as the page is wide, under a heading and what they show."""
    images = "".join(_image(name, figure) for name, figure in panels)
    return f"<h2>{html.escape(heading)}</h2><p>{html.escape(explanation)}</p><div class='panels'>{images}</div>"


def glossary(terms: dict[str, str]) -> str:
    """Terms, each with its meaning in one line."""
    lines = (f"<dt>{html.escape(term)}</dt><dd>{html.escape(meaning)}</dd>" for term, meaning in terms.items())
    return f"<dl>{''.join(lines)}</dl>"


def folded(title: str, part: str) -> str:
    """A part of a page that opens with a click."""
    return f"<details><summary>{html.escape(title)}</summary>{part}</details>"


def data_table(table: pd.DataFrame) -> str:
    """A table without its empty columns, which scrolls by itself where the page is narrower."""
    shown = table.loc[:, [name for name in table if not table[name].isin(["", None]).all()]]
    return f"<div class='wide'>{shown.to_html(index=False, border=0, na_rep='undefined')}</div>"


def _image(name: str, figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return f"<img alt='{html.escape(name)}' src='{source}'>"


def _line(entries: list[str]) -> str:
    return f"| {' | '.join(entries)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _emphasised(entry: Entry, bold: str, escape: Callable[[str], str]) -> str:
    pattern = {"best": bold, "second": "<u>{}</u>"}.get(entry.place, "{}")
    return pattern.format(escape(entry.text))


def _html_table(table: Table) -> str:
    lines = ["<tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in table.header) + "</tr>"]
    for section in table.sections:
        if section.heading:
            lines.append(f"<tr><th colspan='{len(table.header)}'><i>{html.escape(section.heading)}</i></th></tr>")
        for row in section.rows:
            entries = (_emphasised(entry, "<b>{}</b>", html.escape) for entry in row)
            lines.append("<tr>" + "".join(f"<td>{entry}</td>" for entry in entries) + "</tr>")
    return f"<div class='wide'><table>{''.join(lines)}</table></div>"
