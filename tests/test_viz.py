"""The map of the pipelines: the static site of kedro-viz, as files and in a real browser (Debian's chromium)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pytest

PROJECT = Path(__file__).parents[1]
COPY = TemporaryDirectory(prefix="mpfm_kedro-")  # removed at the end
PIPELINES = ("comparison", "ablation", "sensitivity", "study", "fit", "learn", "predict", "export")
CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
SEEN_ALREADY = "localStorage.setItem('KedroViz', JSON.stringify({showFeatureHints: false}))"
SHOWN_AS = {
    "images": "ImagePreview",
    "samples": "TablePreview",
    "features": "TablePreview",
    "contact_sheet": "ImagePreview",
    "hard_runs": "TablePreview",
    "hard_prototypes": "TablePreview",
    "hard_trained": "TablePreview",
    "hard_models": "TablePreview",
    "hard_description": "PlotlyPreview",
    "hard_scores": "PlotlyPreview",
    "hard_evaluation": "TablePreview",
    "hard_summary_text": "HTMLPreview",
    "hard_report": "HTMLPreview",
    "hard_metrics": "JSONPreview",
}
NOT_SHOWN = {"backbone_weights", "hard_figures"}  # nothing to see, and pictures that the report shows
METHOD = ["list_samples", "check_images", "split_normals", "extract_features", "draw_runs"]
METHOD += ["initialise_prototypes", "train_mpfm", "calibrate_scores", "score_images", "evaluate", "write_report"]


VENV = Path(sys.executable).parents[1]


def call(project: Path, *command: str | Path) -> str:
    """What a command writes to the error stream, in the folder of a project and the test environment."""
    environment = os.environ | {"KEDRO_ENV": "test"}
    done = subprocess.run(list(map(str, command)), cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@cache
def run_in_copy() -> Path:
    """A copy of the project in which the hard setting was run on synthetic images, once for all tests."""
    project = Path(COPY.name, "mpfm_kedro")
    for part in ("conf", "src", "notebooks"):
        shutil.copytree(PROJECT / part, project / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "constraints.txt", "Makefile", ".telemetry"):
        shutil.copy(PROJECT / file, project)
    weights = PROJECT / "data/01_raw/weights"
    weights.mkdir(parents=True, exist_ok=True)
    (project / "data/01_raw").mkdir(parents=True)
    (project / "data/01_raw/weights").symlink_to(weights)
    call(project, VENV / "bin/kedro", "run", "--pipelines=hard_setting")
    return project


TRICKY = "known_class=all, first_seed=0, 2 * 3 * 4\n| M_g | M_r |\n|---|---|\n| 1 | 2 |\n\n## <b>not bold</b>"


@pytest.fixture(scope="module")
def site() -> Path:
    """The static site of a project that was run."""
    project = run_in_copy()
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
    for name, kind in SHOWN_AS.items():
        shown = json.loads((site / "api/nodes" / node_id(site, name)).read_text())
        assert shown["preview_type"] == kind, name
        assert shown["preview"], name
        if name == "hard_runs":
            assert "36 items" in shown["preview"]["data"][0]  # not the names of all training images
    data = [node for node in pipeline(site)["nodes"] if node["type"] == "data"]
    bare = [node for node in data if not json.loads((site / "api/nodes" / node["id"]).read_text())["preview"]]
    assert {node["name"] for node in bare} == NOT_SHOWN


class Browser:
    """A page of the site; errors of the page are collected."""

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.set_default_timeout(180_000)  # a busy machine takes its time to lay out the map

    def open(self, **query: str) -> None:
        self.page.goto(f"{self.address}/?" + "&".join(f"{key}={value}" for key, value in query.items()))
        self.page.wait_for_selector(".pipeline-node")
        self.page.wait_for_timeout(1000)  # the chart moves to its place

    def names(self) -> set[str]:
        return set(self.page.locator(".pipeline-node__text").all_text_contents())


@pytest.fixture(scope="module")
def browser(site: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no browser is found: install Debian's package chromium")
    from playwright.sync_api import sync_playwright

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = chromium.new_context(viewport={"width": 1500, "height": 900}, device_scale_factor=1.5)
        context.add_init_script(SEEN_ALREADY)
        yield Browser(context.new_page(), f"http://127.0.0.1:{server.server_port}")
        chromium.close()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("dataset", "drawn"),
    [
        ("hard_evaluation", ".preview-table__row"),
        ("hard_scores", ".pipeline-plotly-chart svg.main-svg"),
        ("hard_summary_text", ".pipeline-metadata__preview-html"),
        ("hard_report", ".pipeline-metadata__preview-html"),
        ("contact_sheet", "img.pipeline-metadata__plot-image"),
    ],
)
def test_previews_are_drawn(browser: Browser, site: Path, dataset: str, drawn: str):
    browser.open(pid="hard_setting", sid=node_id(site, dataset), expandAllPipelines="true")
    shown = browser.page.locator(drawn).first
    shown.wait_for(state="visible")
    if drawn.startswith("img"):
        size = shown.evaluate("image => [image.naturalWidth, image.naturalHeight, image.width, image.height]")
        assert size[0] > 100
        assert size[0] / size[1] == pytest.approx(size[2] / size[3], rel=0.03), "the image is squashed"
    if drawn.endswith("html"):
        assert shown.locator("em").count() == 0, "names with underscores are not italic"
    if dataset == "hard_summary_text":
        assert shown.inner_text().split() == TRICKY.split()
    assert not browser.errors


def test_workflow_has_an_address_of_its_own(browser: Browser):
    browser.page.goto(f"{browser.address}/workflow")
    browser.page.locator(".run-status-notification").wait_for(state="visible")
    browser.page.locator("[data-test=global-toolbar-flowchart-btn]").click()
    browser.page.wait_for_url(lambda url: "workflow" not in url)
    browser.page.locator(".pipeline-node").first.wait_for()
    assert not browser.errors
