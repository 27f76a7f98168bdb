"""Write docs/parameters.md: names and defaults of conf/base, their comments, and what the pydantic models allow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpfm_kedro.parameters import COPIES, Parameters

DOCS = Path(__file__).parent
CONF = DOCS.parent / "conf/base"
FILES = ["", "_ingestion", "_features", "_model", "_studies", "_inspection", "_compute"]
LINE = re.compile(r"^(?P<indent>\s*)(?P<name>\w+):\s*(?P<value>[^#]*?)\s*(?:#\s*(?P<comment>.*))?$")


def rows(file: Path) -> Iterator[tuple[str, str, str]]:
    """Dotted name, default and comment of each parameter of a file."""
    group = ""
    for line in file.read_text(encoding="utf-8").splitlines():
        found = LINE.match(line)
        if found is None:
            continue
        name, value, comment = found["name"], found["value"], found["comment"] or ""
        if not found["indent"]:
            group = "" if value else f"{name}."
        if value:
            yield f"{group if found['indent'] else ''}{name}", value, comment


def allowed(name: str) -> str:
    """What the models allow for a parameter, in words."""
    schema: dict[str, Any] = Parameters.model_json_schema()
    definitions, node = schema["$defs"], schema
    for part in name.split("."):
        node = node["properties"][part]
        if reference := node.get("$ref"):
            node = definitions[reference.rpartition("/")[2]]
    return in_words(node)


def in_words(node: dict[str, Any]) -> str:
    """A JSON schema as a phrase."""
    if "anyOf" in node:
        return " or ".join(in_words(one) for one in node["anyOf"])
    if "enum" in node:
        return ", ".join(node["enum"])
    if "const" in node:
        return str(node["const"])
    if node.get("type") == "array":
        return f"list: {in_words(node['items'])}"
    words = {"integer": "integer", "number": "number", "string": "text", "boolean": "true, false", "null": "null"}
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = ", ".join(f"{sign} {node[bound]:g}" for bound, sign in bounds.items() if bound in node)
    return " ".join(filter(None, [words.get(node.get("type", ""), "mapping"), limits]))


def page() -> str:
    """The whole page."""
    table = ["| parameter | default | allowed | meaning |", "|---|---|---|---|"]
    for name in FILES:
        for parameter, value, comment in rows(CONF / f"parameters{name}.yml"):
            assert parameter not in COPIES
            cells = [f"`{parameter}`", f"`{value}`", allowed(parameter), comment]
            table.append("| " + " | ".join(cell.replace("|", "or") for cell in cells) + " |")
    return (DOCS / "parameters_head.txt").read_text(encoding="utf-8").replace("{table}", "\n".join(table))


if __name__ == "__main__":
    (DOCS / "parameters.md").write_text(page(), encoding="utf-8")
