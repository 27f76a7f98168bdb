"""The benchmarks can be imported: what they use of the package has not been renamed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from general_elpv import KNOWN, SEED, open_cell, read_parameters


@pytest.mark.parametrize("name", [file.stem for file in Path(__file__).parents[1].glob("benchmarks/*.py")])
def test_what_a_benchmark_imports_exists(name: str):
    assert import_module(name)


def test_the_cell_is_of_a_development_seed():
    cell = open_cell(read_parameters(), 300)
    assert cell.run["seed"] == SEED >= 100
    assert len(cell.anomalies) == 4 * KNOWN
    assert not {*cell.normals, *cell.anomalies[:KNOWN]} & set(cell.tested)
