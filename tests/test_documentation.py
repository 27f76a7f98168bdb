"""The documentation: links lead somewhere, and the README's results are those of the pages in docs/results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from running import PROJECT

PAGES = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
    cwd=PROJECT,
    capture_output=True,
    text=True,
    check=True,
).stdout.splitlines()
DATASETS = {"ELPV": "elpv", "HeadCT": "headct", "BrainMRI": "brainmri", "AITEX": "aitex", "screw": "screw"}


def anchors(page: Path) -> set[str]:
    """What links to the headings of a page look like on GitHub."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_a_file_and_a_heading(name: str):
    page = PROJECT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def table_with(page: str, column: str) -> list[dict[str, str]]:
    """The first table of a page that has this column, without marks of places, notes and differences."""
    for block in re.findall(r"(?:^\|.*\n)+", re.sub(r"[*†▲▼]|</?u>", "", page), re.MULTILINE):
        heads, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        if column in heads:
            return [dict(zip(heads, row, strict=True)) for row in rows]
    assert not page, f"no table has the column {column}"
    return []


def cells(page: str, column: str) -> dict[str, str]:
    """Method → cell of the first table with this column, of what was measured."""
    return {row["method"]: row[column] for row in table_with(page, column) if row[column] not in ("", "undefined")}


def mean(auc: str) -> str:
    return auc.split(" ")[0]


AUCS = table_with((PROJECT / "README.md").read_text(), "MPFM, step 0")


@pytest.mark.parametrize("row", AUCS, ids=lambda row: f"{row['']}, M={row['M']}")
def test_results_of_the_readme_are_those_of_the_pages(row: dict[str, str]):
    dataset = DATASETS[re.split(r"[ ,]", row[""])[0]]
    column = f"{'hard mean' if 'hard' in row[''] else 'general'}, M={row['M']}"
    names = [*[f"{dataset}_mpfm_hard"] * ("hard" in row[""]), f"{dataset}_mpfm", f"{dataset}_comparison"]
    files = [PROJECT / f"docs/results/{name}.md" for name in names]
    page = next(file.read_text() for file in files if file.is_file())
    ours = cells(page, column)
    assert row["MPFM"] == ours["MPFM"]
    assert row["recall at 1 %"] == mean(cells(page.partition("## recall at 1 %")[2], column).get("MPFM", ""))
    columns = {"MPFM, step 0": "MPFM, step 0", "no defect known": "MPFM, no anomaly known"}
    columns["published MPFM"] = "MPFM (published)"
    assert {name: row[name] for name in columns} == {name: mean(ours[method]) for name, method in columns.items()}
    if row["best reference"]:
        others = {method: mean(auc) for method, auc in cells(files[-1].read_text(), column).items()}
        assert row["best reference"] in others.values()
        best, methods = re.fullmatch(r"(\S+) \((.+)\)", row["best rebuilt baseline"]).groups()
        assert {others[method] for method in methods.split(", ")} == {best}


def test_page_of_parameters_is_that_of_the_present_ones():
    sys.path.insert(0, str(PROJECT / "docs"))
    import parameters_page

    assert (PROJECT / "docs/parameters.md").read_text() == parameters_page.page(), "make parameters"
