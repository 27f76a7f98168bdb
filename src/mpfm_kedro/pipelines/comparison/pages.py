"""Tables as Markdown and as pages."""

from __future__ import annotations

import html
from collections.abc import Callable

from matplotlib.figure import Figure

from mpfm_kedro.pipelines.comparison.layout import Entry, Table
from mpfm_kedro.pipelines.reporting.nodes import page, picture


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


def as_page(title: str, tables: list[Table], remarks: list[str], pictures: dict[str, Figure]) -> str:
    """Tables, remarks and pictures as an HTML page complete in itself."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for table in tables:
        parts.append(f"<h2>{html.escape(table.title)}</h2>{_html_table(table)}")
        parts += [f"<p>{html.escape(note)}</p>" for note in table.notes]
    parts += [f"<p>{html.escape(remark)}</p>" for remark in filter(None, remarks)]
    return page(title, parts + [picture(heading, figure) for heading, figure in pictures.items()])


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
