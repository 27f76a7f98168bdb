"""The page of predictions: complete up to its limits, safe, with pictures that exist."""

from __future__ import annotations

import base64
import io
import os
import re
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from html_page import Page
from mpfm_kedro.inspection.finding import find_images
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.predictions import COLUMNS, PredictionLog, predict_files
from mpfm_kedro.inspection.thresholds import decide
from mpfm_kedro.reports.predictions import MOST, write_page
from production_models import INGESTION, INSPECTION

NAME = "<img src=x onerror='alert(1)'>&\".png"


@pytest.fixture
def written(inspector: Inspector, fitted_project: Path, tmp_path: Path):
    """Predict images and write their page; gives the page's folder, the page and the table."""

    def write(names: dict[str, str], which: str = "flagged") -> tuple[Path, Page, pd.DataFrame]:
        folder, new = tmp_path / "page", tmp_path / "new"
        new.mkdir(exist_ok=True)
        for name, source in names.items():
            content = (fitted_project / "raw/synthetic" / source).read_bytes() if source else b"no image"
            (new / name).write_bytes(content)
        files, overlays = find_images(str(new)), folder / "overlays"
        log = PredictionLog.of(tmp_path / "log", inspector.card)
        table = predict_files(inspector, files, log, inspector.threshold, overlays, which, workers=0)
        text = write_page(table, inspector.model, tmp_path / "log", folder, INSPECTION, INGESTION)
        folder.mkdir(exist_ok=True)
        (folder / "page.html").write_text(text, "utf-8")
        return folder, Page(text), table

    return write


def test_images_are_sorted_and_flagged_ones_are_explained(written):
    folder, page, table = written(
        {"a.png": "good/000.png", "b.png": "spot/000.png", "c.png": "", "d.png": "good/001.png"}
    )
    assert page.all("article", "data-decision") == ["defective", "good", "good", "error"]
    places = [page.text.index(Path(path).name) for path in table["path"]]
    assert places == sorted(places)
    assert page.text.count("adds most") == 1
    assert "c.png cannot be used" in page.text
    assert f"Names are below {Path(table['path'][0]).parent}" in page.text
    _, *sources = page.all("img", "src")  # after the histogram
    assert len(sources) == 3 + 1 + 3 * 5  # images, an overlay, four normals and an anomaly for each
    assert all((folder / source).is_file() for source in sources)
    assert {
        Path(unquote(link.removeprefix("file://"))) for link in page.all("a", "href") if link.startswith("file:")
    } == {Path(path) for path in table["path"]}


def test_why_says_how_rare_each_score_is_among_good_images(written, inspector):
    _, page, table = written({"a.png": "good/000.png", "b.png": "spot/000.png"})
    normals = inspector.model.calibration.normals
    for row, why in zip(table.to_dict("records"), page.text.split("Why")[1:], strict=True):
        n = len(normals)
        for name, sign, level in (("g", 1, "high"), ("a", 1, "high"), ("r", 1, "high"), ("n", -1, "low")):
            number = (sign * normals[f"score_{name}"] >= sign * row[f"score_{name}"]).sum()
            said = f"about 1 in {n / max(1, number):.0f} good images scores so {level}"
            said = f"{level}er than any of {n} good images" if not number else said
            said = f"most good images score so {level}" if number > n / 2 else said
            assert said in re.split(r"S\w", why)[1 + "garn".index(name)]
    assert "higher than any of 48 good images" in page.text.split("Why")[1]
    assert "adds most" in page.text and "; higher than any of 48 good images." in page.text.split("Why")[0]


def test_both_thresholds_and_the_guarantee_are_there(written, inspector):
    _, page, _ = written({"a.png": "good/000.png"})
    for value in (inspector.threshold.good, inspector.threshold.defective):
        assert f"{value:.2f}" in page.text and f"{value:.2f}" in page.all("img", "alt")[0]
    assert "1 % cannot be guaranteed" in page.text and "48 held-out normal items" in page.text


def test_names_are_escaped_and_links_lead_to_the_files(written):
    _, page, table = written({NAME: "spot/000.png"})
    assert NAME in page.text
    assert not [attributes for _, attributes in page.tags if "onerror" in attributes]
    (link,) = (link for link in page.all("a", "href") if link.startswith("file:"))
    assert unquote(link.removeprefix("file://")) == table["path"][0]


def test_a_name_that_is_no_text_is_a_row_with_an_error(written):
    _, page, table = written({os.fsdecode(b"odd-\xff.png"): "spot/000.png", "b.png": "spot/000.png"})
    assert table["decision"].tolist() == ["defective", "error"]
    assert page.text.count("odd-\\udcff.png") == 2 and "rename it" in page.text


def many(inspector: Inspector, number: int) -> pd.DataFrame:
    """Predictions of files that are not there."""
    scores = -np.sort(-np.random.default_rng(0).normal(2, 4, number))
    table = pd.DataFrame({"path": [f"/nowhere/{i:06}.png" for i in range(number)], "score": scores, "p_value": 0.5})
    table["decision"] = decide(scores, inspector.threshold)
    table["error"] = ""
    lost = pd.DataFrame({"path": [f"/nowhere/lost{i}.png" for i in range(900)], "decision": "error", "error": "is cut"})
    return pd.concat([table, lost], ignore_index=True).reindex(columns=COLUMNS)


def test_the_page_of_many_images_is_bounded_and_says_so(inspector, tmp_path):
    table = many(inspector, 100_000)
    text = write_page(table, inspector.model, tmp_path, tmp_path, INSPECTION, INGESTION)
    page = Page(text)
    assert len(page.all("article", "data-decision")) == sum(MOST.values())
    assert len(text) < 500_000
    for name, number in table["decision"].value_counts().items():
        word = "unreadable" if name == "error" else name
        assert f"{MOST[name]:,} of {number:,} {word}" in page.text
    assert "predictions.csv" in page.all("a", "href")
    assert "100,900 images" in page.text


def test_numbers_of_the_histogram_are_finite_with_one_score_or_none(written):
    for names in ({"c.png": ""}, {"a.png": "good/000.png"}):
        folder, _, _ = written(names)
        text = (folder / "page.html").read_text("utf-8")
        (drawing,) = (own for tag, own in Page(text).tags if tag == "img" and own.get("class") == "histogram")
        content = base64.b64decode(drawing["src"].removeprefix("data:image/png;base64,"))
        assert len(Image.open(io.BytesIO(content)).convert("RGB").getcolors(1 << 20)) > 10
        assert re.search(r"good up to \d+\.\d\d, defective above \d+\.\d\d$", drawing["alt"])
