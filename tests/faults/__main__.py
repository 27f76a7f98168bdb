"""The long form of the fault suite: every fault in every stage, and every damage of every kind of file.

``make faults`` prints a Markdown table of what happened; it fails where a result was wrong or lost.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from faults.cases import DAMAGES, KINDS, PROCESS_FAULTS, NotHereError, Undisturbed, damage
from faults.project import STAGES, end_all


def main() -> int:
    """Do it all; the exit code is the number of failures, at most 1."""
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    failures: list[str] = []

    def cell(row: str, column: str, case: Callable[[str], str]) -> str:
        if only not in f"{row} {column}":
            return "not run"
        try:
            outcome = case("case")
        except NotHereError as error:
            return f"– ({error})"
        except Exception:
            traceback.print_exc()
            failures.append(f"{row}, {column}")
            outcome = "**FAILED**"
        finally:
            end_all()
            shutil.rmtree(folder / "case", ignore_errors=True)
        print(f"{row}, {column}: {outcome}", file=sys.stderr, flush=True)
        return outcome

    try:
        base = Undisturbed.make(folder)
        stages = pd.DataFrame(
            {
                stage: {
                    fault: cell(fault, stage, lambda name, do=do, stage=stage: do(base, stage, name))
                    for fault, do in PROCESS_FAULTS.items()
                }
                for stage in STAGES
            }
        )
        files = pd.DataFrame(
            {
                how: {
                    kind: cell(kind, how, lambda name, kind=kind, how=how: damage(base, kind, how, name))
                    for kind in KINDS
                }
                for how in DAMAGES
            }
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(markdown("fault", stages), markdown("stored file", files), sep="\n\n")
    return int(bool(failures))


def markdown(first: str, table: pd.DataFrame) -> str:
    """A table as Markdown."""
    lines = [[first, *table.columns], ["---"] * (len(table.columns) + 1)]
    lines += [[name, *row] for name, row in zip(table.index, table.to_numpy().tolist(), strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
