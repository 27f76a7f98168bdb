"""The long form of the fault suite: every fault in every stage, and every damage of every kind of file.

``make faults`` prints two Markdown tables of what happened; it fails where a result was wrong or lost.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from faults.cases import DAMAGES, KINDS, PROCESS_FAULTS, NotHereError, Undisturbed, damage
from faults.project import STAGES, end_all

FAILED = "**FAILED**"
Cases = dict[tuple[str, str], Callable[[str], str]]  # by row and column of a table; each is given the name of a folder


def main() -> int:
    """Do everything, or what a word of the command line selects; the exit code is 1 where something failed."""
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        base = Undisturbed.make(folder)
        faults: Cases = {
            (name, stage): partial(fault, base, stage) for name, fault in PROCESS_FAULTS.items() for stage in STAGES
        }
        damages: Cases = {
            (kind, how): partial(damage, base, kind, how)
            for kind, known in KINDS.items()
            for how in DAMAGES
            if known.has_checksum or "flipped" not in how
        }
        found = [outcomes(cases, title, only, folder) for title, cases in (("fault", faults), ("stored file", damages))]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(any(FAILED in some.values() for some in found))


def outcomes(cases: Cases, title: str, only: str, folder: Path) -> dict[tuple[str, str], str]:
    """Try the cases that are selected, and print their table."""
    chosen = {place: case for place, case in cases.items() if only in " ".join([title, *place])}
    found = {}
    for place, case in chosen.items():
        found[place] = outcome(case, folder)
        print(*place, found[place], sep=", ", file=sys.stderr, flush=True)
    if found:
        print(markdown(title, found), flush=True)
    return found


def outcome(case: Callable[[str], str], folder: Path) -> str:
    """What happened in one case."""
    try:
        return case("case")
    except NotHereError as error:
        return f"– ({error})"
    except Exception:
        traceback.print_exc()
        return FAILED
    finally:
        end_all()
        shutil.rmtree(folder / "case", ignore_errors=True)


def markdown(title: str, found: dict[tuple[str, str], str]) -> str:
    """A table as Markdown."""
    rows, columns = (dict.fromkeys(names) for names in zip(*found, strict=True))
    lines: list[Iterable[str]] = [[title, *columns], ["---"] * (len(columns) + 1)]
    lines += [[row, *(found.get((row, column), "not run") for column in columns)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
