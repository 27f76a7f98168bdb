"""The walkthrough runs on the results of the test environment, and has no outputs in git."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

from test_viz import run_in_copy

WALKTHROUGH = Path(__file__).parents[1] / "notebooks/walkthrough.ipynb"


def test_no_outputs_in_git():
    cells = [cell for cell in nbformat.read(WALKTHROUGH, 4).cells if cell.cell_type == "code"]
    assert cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


def test_walkthrough_runs_and_shows_pictures_and_tables(monkeypatch):
    folder = run_in_copy() / "notebooks"
    monkeypatch.setenv("KEDRO_ENV", "test")
    notebook = nbformat.read(folder / WALKTHROUGH.name, 4)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": folder}})
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    # three classes, before and after transport, scores, false alarms, misses
    assert kinds.count("image/png") == 7
    assert kinds.count("text/html") == 2  # the images by class, the summary
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
