"""The map of the pipelines, the static site of kedro-viz with our previews, and the walkthrough of the same run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from running import PROJECT

WALKTHROUGH = "notebooks/walkthrough.ipynb"
PIPELINES = ("comparison", "ablation", "sensitivity", "study", "fit", "learn", "predict", "export")
SEEN_ALREADY = "localStorage.setItem('KedroViz', JSON.stringify({showFeatureHints: false}))"
NOT_SHOWN = {"backbone_weights", "hard_figures"}  # nothing to see, and pictures that the report shows
METHOD = ["list_samples", "check_images", "split_normals", "extract_features", "draw_runs"]
METHOD += ["initialise_prototypes", "train_mpfm", "calibrate_scores", "score_images", "evaluate", "write_report"]
TRICKY = "known_class=all, first_seed=0, 2 * 3 * 4\n| M_g | M_r |\n|---|---|\n| 1 | 2 |\n\n## <b>not bold</b>"
VENV = Path(sys.executable).parents[1]


def call(project: Path, *command: str | Path) -> str:
    """What a command writes to the error stream, in the folder of a project and the test environment."""
    environment = os.environ | {"KEDRO_ENV": "test"}
    done = subprocess.run(list(map(str, command)), cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in which the hard setting was run on synthetic images."""
    project = tmp_path_factory.mktemp("copy")
    for part in ("conf", "src", "notebooks"):
        shutil.copytree(PROJECT / part, project / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "constraints.txt", "Makefile", ".telemetry"):
        shutil.copy(PROJECT / file, project)
    weights = PROJECT / "data/01_raw/weights"
    weights.mkdir(parents=True, exist_ok=True)
    (project / "data/01_raw").mkdir(parents=True)
    (project / "data/01_raw/weights").symlink_to(weights)
    call(project, VENV / "bin/kedro", "run", "--pipelines=hard_setting", "--params=n_seeds=1")
    return project


@pytest.fixture(scope="module")
def site(project: Path) -> Path:
    """The static site of a project that was run."""
    (project / "data/08_reporting/synthetic/hard/summary.txt").write_text(TRICKY)
    log = call(project, "make", "viz", f"VENV={VENV}", f"--old-file={VENV}/.installed-viz").splitlines()
    assert not [line for line in log if "could not be previewed" in line and "'hard_" in line]
    assert not [line for line in log if "WARNING" in line]
    assert (project / "build/api/deploy-viz-metadata").is_file(), log
    return project / "build"


def pipeline(site: Path, name: str = "hard_setting") -> dict[str, Any]:
    return json.loads((site / "api/pipelines" / name).read_text())


def node_id(site: Path, name: str) -> str:
    return next(node["id"] for node in pipeline(site)["nodes"] if node["name"] == name)


def test_the_map_shows_the_dataset_and_the_results_of_the_environment(site: Path):
    shown = json.loads((site / "api/nodes" / node_id(site, "hard_evaluation")).read_text())
    assert shown["filepath"].endswith("/synthetic/hard")
    assert {row[0] for row in shown["preview"]["data"]} == {"synthetic"}


def test_the_map_opens_on_the_method(site: Path):
    """Nodes that a reader of the paper knows, in no box."""
    shown = pipeline(site)
    tasks = [node["name"] for node in shown["nodes"] if node["type"] == "task"]
    assert set(METHOD) <= set(tasks) and len(tasks) <= 14
    assert not [node for node in shown["nodes"] if node["type"] == "modularPipeline"]
    inputs = [sum(edge["target"] == node["id"] for edge in shown["edges"]) for node in shown["nodes"]]
    assert max(inputs) <= 6
    workflow = (site / "workflow/index.html").read_text()
    assert '<head><base href="../">' in workflow, "finds its files from an address of its own"


def test_layers_are_in_order(site: Path):
    order = ["raw", "intermediate", "feature", "model_input", "models", "model_output", "reporting"]
    assert [layer for layer in pipeline(site)["layers"] if layer in order] == order
    assert not [node for node in pipeline(site)["nodes"] if node.get("layer") not in {*order, None}]
    kept = pipeline(site, "fit")
    (version,) = (node for node in kept["nodes"] if node.get("layer") == "versions")
    assert version["name"] == "production_model_version"
    assert version["id"] not in {edge["source"] for edge in kept["edges"]}, "versions come last"
    for name in PIPELINES:
        shown = pipeline(site, name)
        known = {node["layer"] for node in shown["nodes"] if node.get("layer")}
        assert known <= set(shown["layers"]), f"the layers of {name} go in a circle"


def test_every_dataset_has_a_preview(site: Path):
    data = [node for node in pipeline(site)["nodes"] if node["type"] == "data"]
    shown = {node["name"]: json.loads((site / "api/nodes" / node["id"]).read_text())["preview"] for node in data}
    assert {name for name, preview in shown.items() if not preview} == NOT_SHOWN
    assert "36 items" in shown["hard_runs"]["data"][0]  # not the names of all training images


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The address of the served site."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_texts_and_images_are_shown_as_they_are_though_viz_takes_markdown_and_stretches(
    window: Any, address: str, site: Path
):
    window.add_init_script(SEEN_ALREADY)
    shown = {}
    for dataset in ("hard_report", "hard_summary_text", "contact_sheet"):
        window.goto(f"{address}/?pid=hard_setting&sid={node_id(site, dataset)}&expandAllPipelines=true")
        drawn = (
            "img.pipeline-metadata__plot-image" if dataset == "contact_sheet" else ".pipeline-metadata__preview-html"
        )
        shown[dataset] = window.locator(drawn).first
        shown[dataset].wait_for(state="visible")
        if dataset == "hard_summary_text":
            assert shown[dataset].inner_text().split() == TRICKY.split()
        assert dataset == "contact_sheet" or shown[dataset].locator("em").count() == 0, "names are not italic"
    size = shown["contact_sheet"].evaluate(
        "image => [image.naturalWidth, image.naturalHeight, image.width, image.height]"
    )
    assert size[0] > 100 and size[0] / size[1] == pytest.approx(size[2] / size[3], rel=0.03), "the image is squashed"


def test_walkthrough_has_no_outputs_in_git_and_shows_pictures_and_tables(project: Path, monkeypatch):
    notebook = nbformat.read(PROJECT / WALKTHROUGH, 4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells and all(not cell.outputs and cell.execution_count is None for cell in cells)
    monkeypatch.setenv("KEDRO_ENV", "test")
    resources = {"metadata": {"path": (project / WALKTHROUGH).parent}}
    NotebookClient(notebook, timeout=120, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    # three classes, before and after transport, scores, false alarms, misses
    assert kinds.count("image/png") == 7
    assert kinds.count("text/html") == 2  # the images by class, the summary
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
