"""The inspection line through the pipelines: fit, predict, learn, go back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image, ImageOps

from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.predictions import overlay_path
from running import kedro, run, typed

MODEL = "out/06_models/synthetic/production/model"


def card(folder: Path) -> dict:
    return json.loads((folder / MODEL / "card.json").read_text())


@pytest.fixture(scope="module")
def line(fitted_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the fitted project, with new images: two defects, two normals and a file that is no image."""
    folder = Path(shutil.copytree(fitted_project, tmp_path_factory.mktemp("line") / "project"))
    (folder / "new").mkdir()
    raw = folder / "raw/synthetic"
    for file in [*sorted(raw.glob("good/*.png"))[:2], *sorted(raw.glob("spot/*.png"))[:2]]:
        ImageOps.mirror(Image.open(file)).save(folder / "new" / f"{file.parent.name}_{file.name}")
    (folder / "new/broken.png").write_bytes(b"no image")
    run("predict", folder, images=str(folder / "new"), batch="new")
    return folder


def test_every_new_image_has_a_row_and_flagged_ones_an_overlay(line: Path):
    folder = line / "out/08_reporting/synthetic/predictions/new"
    table = pd.read_csv(folder / "predictions.csv", keep_default_na=False)
    pairs = zip(table["path"], table["decision"], strict=True)
    decisions = {Path(path).name.split("_")[0]: decision for path, decision in pairs}
    assert decisions == {"good": "good", "spot": "defective", "broken.png": "error"}
    drawn = [overlay_path(folder / "overlays", card(line), path).is_file() for path in table["path"]]
    assert drawn == (table["decision"] == "defective").tolist()
    page = (folder / "predictions.html").read_text()
    assert "spot_000.png" in page and "defective" in page


def test_learning_makes_a_new_version_and_going_back_takes_it_away(line: Path):
    before = card(line)
    wrong = line / "new/spot_000.png"
    run("learn", line, images=str(wrong), label="anomaly")
    after = card(line)
    assert after["data"]["anomalies"] == before["data"]["anomalies"] + 1
    assert [row["origin"] for row in after["learned"]] == [str(wrong)]
    said = (line / "out/08_reporting/synthetic/learning/summary.txt").read_text()
    assert "Guarantee before" in said and "Guarantee after" in said and "AUC of the general setting" in said
    (taught,) = (line for line in said.splitlines() if line.endswith(str(wrong)) and "→" in line)
    assert "held out" in taught and said.count("(held out:") == 1, "earlier predictions are not taught images"
    assert "Of 0 earlier" not in said
    folder = line / "out/08_reporting/synthetic"
    predicted = pd.read_csv(folder / "predictions/new/predictions.csv", keep_default_na=False)
    compared = pd.read_csv(folder / "learning/compared.csv").set_index("path")
    usable = predicted[predicted["error"] == ""].set_index("path")
    assert compared.loc[usable.index, "score_before"].tolist() == pytest.approx(usable["score"].astype(float).tolist())
    assert (compared["score_after"] != compared["score_before"]).any()
    logs = list((line / "out/07_model_output/synthetic/predictions").glob("*.jsonl"))
    assert len(logs) == 2, "what the new model said of the earlier images is not computed again"
    versions = sorted((line / "out/versions/synthetic/production/model").iterdir())
    assert len(versions) == 2
    with pytest.raises(InputError, match="already known, as anomaly"):
        run("learn", line, images=str(wrong), label="normal")
    assert card(line) == after  # nothing is lost
    (undo,) = (line.removeprefix("To undo: kedro ") for line in said.splitlines() if line.startswith("To undo"))
    done = kedro(*undo.split())
    assert done.returncode == 0, done.stderr
    assert card(line)["files"] == before["files"]
    table = pd.read_parquet(line / "out/06_models/synthetic/collection/collection.parquet")
    assert table.empty
    assert versions[1].name in kedro("versions", "list", "--output-root", str(line / "out")).stdout


@pytest.mark.parametrize(
    ("pipeline", "parameters", "match"),
    [
        ("predict", {}, "'images' is missing"),
        ("predict", {"images": "/nowhere"}, "/nowhere"),
        ("learn", {"images": "x"}, "'label' is missing"),
        ("learn", {"images": "/nowhere", "label": "anomaly"}, "/nowhere"),
        ("learn", {"images": "x", "label": "defect"}, "label"),
        ("predict", {"images": "x", "inspection": {"false_alarm_rate": 2}}, "false_alarm_rate"),
    ],
)
def test_what_cannot_be_used_is_named(line: Path, pipeline: str, parameters: dict, match: str):
    with pytest.raises(InputError, match=match):
        run(pipeline, line, **parameters)


def test_no_model_names_the_command_that_makes_one(tmp_path: Path):
    Image.new("L", (8, 8)).save(tmp_path / "one.png")
    done = kedro(*typed("predict", tmp_path, f"images={tmp_path / 'one.png'}"))
    assert done.returncode != 0
    assert "kedro run --pipelines=fit" in done.stderr + done.stdout and "Traceback" not in done.stderr + done.stdout


def test_a_damaged_version_is_not_used(line: Path):
    version = sorted((line / "out/versions/synthetic/production/model").iterdir())[0]
    file = version / "model/calibration.parquet"
    content = file.read_bytes()
    file.unlink()  # it may share its blocks with another version
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    before = card(line)
    done = kedro("versions", "use", "synthetic", version.name, "--output-root", str(line / "out"))
    assert done.returncode != 0 and "calibration.parquet" in done.stderr + done.stdout
    assert card(line) == before
