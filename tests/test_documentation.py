"""The documentation: links lead somewhere, and the README's results are those of the pages in docs/results."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
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


def tables(page: str) -> Iterator[list[dict[str, str]]]:
    """The tables of a page, a row as column → text without marks of places, notes and differences."""
    for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()]
        heads, _, *rows = lines
        plain = [[re.sub(r"[*†▲▼]|</?u>", "", cell) for cell in row] for row in rows]
        yield [dict(zip(heads, row, strict=True)) for row in plain]


def table_with(page: str, column: str) -> list[dict[str, str]]:
    """The first table of a page that has this column."""
    return next(table for table in tables(page) if column in table[0])


def results(name: str, column: str) -> dict[str, dict[str, str]]:
    """Of a results page: kind of methods → method → AUC in a column, without methods that were not measured."""
    found: dict[str, dict[str, str]] = {}
    for row in table_with((PROJECT / f"docs/results/{name}.md").read_text(), column):
        if not any(value for key, value in row.items() if key != "method"):
            kind = re.split(r"[ ,]", row["method"])[0]
            found[kind] = {}
        elif row[column]:
            found[kind][row["method"]] = row[column]
    return found


def recall(name: str, column: str) -> str:
    """MPFM's recall at 1 % false alarms on a results page, without its interval; "" where it is undefined."""
    section = (PROJECT / f"docs/results/{name}.md").read_text().partition("## recall at 1 %")[2]
    rows = table_with(section, column) if section else []
    return next((mean(row[column]) for row in rows if row["method"] == "MPFM" and row[column] != "undefined"), "")


def mean(auc: str) -> str:
    return auc.split(" ")[0]


README = (PROJECT / "README.md").read_text()
AUCS = table_with(README, "MPFM, step 0")


@pytest.mark.parametrize("row", AUCS, ids=lambda row: f"{row['']}, M={row['M']}")
def test_results_of_the_readme_are_those_of_the_pages(row: dict[str, str]):
    dataset = DATASETS[re.split(r"[ ,]", row[""])[0]]
    column = f"{'hard mean' if 'hard' in row[''] else 'general'}, M={row['M']}"
    of_mpfm_alone = [f"{dataset}_mpfm_hard"] * ("hard" in row[""])
    pages = [*of_mpfm_alone, f"{dataset}_mpfm", f"{dataset}_comparison"]
    page = next(page for page in pages if (PROJECT / f"docs/results/{page}.md").is_file())
    found = results(page, column)
    assert row["MPFM"] == found["ours"]["MPFM"]
    assert row["recall at 1 %"] == recall(page, column)
    assert row["MPFM, step 0"] == mean(found["ours"]["MPFM, step 0"])
    assert row["no defect known"] == mean(found["ours"]["MPFM, no anomaly known"])
    assert row["published MPFM"] == mean(found["published"]["MPFM (published)"])
    if not row["best reference"]:
        return
    others = results(f"{dataset}_comparison", column)
    assert row["best reference"] == max(map(mean, others["references"].values()))
    best = max(map(mean, others["baselines"].values()))
    names = [name for name, auc in others["baselines"].items() if mean(auc) == best]
    value, named = re.fullmatch(r"(\S+) \((.+)\)", row["best rebuilt baseline"]).groups()
    assert value == best and set(named.split(", ")) == set(names)


def test_page_of_parameters_is_that_of_the_present_ones():
    sys.path.insert(0, str(PROJECT / "docs"))
    import parameters_page

    assert (PROJECT / "docs/parameters.md").read_text() == parameters_page.page(), "make parameters"
