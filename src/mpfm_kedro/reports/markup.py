"""Tables and figures as Markdown and as HTML pages."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Iterable

from matplotlib.figure import Figure

from mpfm_kedro.reports.layout import Entry, Table

STYLE = (
    "body{font:15px sans-serif;margin:2em auto;max-width:72em}td,th{padding:.2em .8em;text-align:left}"
    "img{max-width:100%}"
)
VIEWPORT = "<meta name='viewport' content='width=device-width, initial-scale=1'>"


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
    head = f"<meta charset='utf-8'>{VIEWPORT}<title>{name}</title><style>{style}</style>"
    body = f"<h1>{name}</h1>{''.join(parts)}"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>"


def paragraphs(texts: Iterable[str]) -> list[str]:
    """Each text that is not empty as a paragraph."""
    return [f"<p>{html.escape(text)}</p>" for text in texts if text]


def embedded(figures: dict[str, Figure]) -> list[str]:
    """Figures under their headings, inside of the page."""
    parts = []
    for name, figure in figures.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=90)
        source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
        heading = html.escape(name)
        parts.append(f"<h2>{heading}</h2><img alt='{heading}' src='{source}'>")
    return parts


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
    return f"<table>{''.join(lines)}</table>"
