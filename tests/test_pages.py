"""The pages of the inspection line in a real browser: what people see and click."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from mpfm_kedro.app.server import AppState
from mpfm_kedro.inspection.finding import find_images
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.predictions import PredictionLog, predict_files
from mpfm_kedro.reports.predictions import write_page
from production_models import INGESTION, INSPECTION
from serving import make_state, serving

PHONE = {"width": 390, "height": 800}


@pytest.fixture
def images(fitted_project: Path, tmp_path: Path) -> Path:
    """Six images in two folders, one with a defect that is hard to see, and a file that is none."""
    raw, folder = fitted_project / "raw/synthetic", tmp_path / "images"
    for kind in ("good", "spot"):
        (folder / kind).mkdir(parents=True)
        for file in sorted((raw / kind).glob("*.png"))[:3]:
            shutil.copy(file, folder / kind)
    (folder / "broken.png").write_bytes(b"no image")
    faint = Image.open(raw / "good/001.png").convert("RGB")
    ImageDraw.Draw(faint).rectangle([20, 20, 24, 24], fill=(140, 140, 140))
    (folder / "more").mkdir()
    faint.save(folder / "more/faint.png")
    return folder


@pytest.fixture
def page(inspector: Inspector, images: Path, tmp_path: Path) -> Path:
    """The page of predictions of these images."""
    folder = tmp_path / "predictions"
    log = PredictionLog.of(tmp_path / "log", inspector.card)
    table = predict_files(inspector, find_images(str(images)), log, inspector.threshold, folder / "overlays", workers=0)
    text = write_page(table, inspector.model, tmp_path / "log", folder, INSPECTION, INGESTION)
    table.to_csv(folder / "predictions.csv", index=False)
    (folder / "predictions.html").write_text(text, "utf-8")
    return folder / "predictions.html"


@pytest.fixture
def state(inspector: Inspector, images: Path, fitted_project: Path, tmp_path: Path) -> AppState:
    """The app, with an empty page."""
    return make_state(inspector, images, fitted_project, tmp_path)


@pytest.fixture
def address(state: AppState) -> Iterator[str]:
    """The app, really served."""
    with serving(state) as found:
        yield found


def shown(window: Any) -> list[str]:
    articles = window.locator("article:visible").all()
    return [article.get_attribute("data-decision") for article in articles]


def test_predictions_can_be_filtered_looked_into_and_read_on_a_phone(window: Any, page: Path):
    window.goto(page.as_uri())
    assert shown(window) == ["defective"] * 3 + ["good"] * 4 + ["error"]
    for name, number in (("defective", 3), ("good", 4), ("error", 1)):
        window.locator(f".filters button[value={name}]").click()
        assert shown(window) == [name] * number
    window.locator(".filters button[value=all]").click()
    assert len(shown(window)) == 8
    window.locator("details summary").first.click()
    for picture in window.locator("article >> nth=0 >> img").all():
        picture.scroll_into_view_if_needed()
        picture.evaluate("image => image.decode()")
        assert picture.evaluate("image => image.naturalWidth") > 20
    window.set_viewport_size(PHONE)
    assert window.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_images_are_inspected_marked_and_decided_anew(window: Any, address: str, images: Path):
    window.goto(address)
    window.set_input_files("#files", [images / "broken.png", images / "spot/000.png"])
    window.locator("article").wait_for()
    assert "broken.png cannot be used" in window.locator("#message").inner_text()
    window.locator("#folder").fill("more")
    window.locator("#inspect").click()
    window.locator("article >> nth=1").wait_for()
    assert shown(window) == ["defective", "good"]

    window.locator("#rate").fill("50")
    window.locator("#rate").blur()
    window.locator("article[data-decision=defective] >> nth=1").wait_for()
    assert window.url.endswith("?rate=0.5")
    window.reload()
    window.locator("article[data-decision=defective] >> nth=1").wait_for()
    window.locator("#rate").fill("1")
    window.locator("#rate").blur()
    window.locator("article[data-decision=good]").wait_for()

    window.get_by_text("It is a defect").first.click()
    window.locator("#learning .row .name").wait_for()
    assert window.get_by_text("Marked as a missed defect.").count() == 1
    window.locator("article >> nth=0 >> summary").click()
    window.locator("article >> nth=0 >> .likes img >> nth=4").wait_for()
    window.locator("#learning").get_by_text("Undo").click()
    window.get_by_text("No image is marked").wait_for()
    assert window.get_by_text("It is a defect").count() == 1


def test_a_file_dropped_on_a_phone_wide_page_is_inspected(window: Any, address: str, images: Path):
    window.set_viewport_size(PHONE)
    window.goto(address)
    window.locator("#results img").wait_for()
    content = list((images / "spot/001.png").read_bytes())
    transfer = window.evaluate_handle(
        """content => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(content)], 'dropped.png', {type: 'image/png'}));
            return transfer;
        }""",
        content,
    )
    window.locator("#drop").dispatch_event("drop", {"dataTransfer": transfer})
    window.locator("article").wait_for()
    assert "dropped.png" in window.locator("article").inner_text()
    assert window.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_another_site_cannot_use_the_app(chromium: Any, address: str, state: AppState, images: Path):
    """A page of another origin sends requests that browsers allow without asking, and shows a picture."""
    found = state.session.add("a.png", (images / "spot/000.png").read_bytes())
    shown = chromium.new_page()
    shown.goto("data:text/html,<p>another site</p>")
    script = "([address, method]) => fetch(address, {method, mode: 'no-cors'}).then(() => 0, () => 0)"
    for method, place in (("POST", "clear"), ("POST", f"images/{found.key}/mark?label=normal"), ("GET", "results")):
        shown.evaluate(script, [f"{address}/{place}", method])
    loaded = """address => new Promise(done => {
        const image = new Image();
        [image.onload, image.onerror] = [() => done(true), () => done(false)];
        image.src = address;
    })"""
    assert not shown.evaluate(loaded, f"{address}/images/{found.key}/picture")
    shown.close()
    assert state.session.images() == [found] and not state.to_learn.labels()
