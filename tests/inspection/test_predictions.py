"""Predictions of many files: every file has a row, and nothing is computed twice."""

import os
from dataclasses import replace

import numpy as np
import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.finding import find_images
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.predictions import COLUMNS, ERROR, PredictionLog, overlay_path, predict_files


@pytest.fixture
def folder(fitted_project, tmp_path):
    """Five images, nested, one of which cannot be read."""
    raw = fitted_project / "raw/synthetic"
    for number, file in enumerate([*sorted(raw.glob("good/*.png"))[:3], *sorted(raw.glob("spot/*.png"))[:1]]):
        target = tmp_path / "new" / f"level{number % 2}" / f"image {number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    (tmp_path / "new/broken.png").write_bytes(b"no image")
    return tmp_path / "new"


@pytest.fixture
def predict(inspector, tmp_path):
    def run(files, which="flagged", workers=0, **thresholds):
        log = PredictionLog.of(tmp_path / "log", inspector.card)
        promised = replace(inspector.threshold, **thresholds)
        return predict_files(inspector, files, log, promised, tmp_path / "overlays", which, workers)

    return run


@pytest.fixture
def counted(inspector, monkeypatch):
    """How many images were predicted."""
    numbers = []
    own = inspector.features

    def count(pixels):
        numbers.append(len(pixels[0]))
        return own(pixels)

    monkeypatch.setattr(inspector, "features", count)
    return numbers


def test_every_file_has_a_row(predict, folder, tmp_path, inspector):
    table = predict(find_images(str(folder)))
    assert table.columns.tolist() == COLUMNS and len(table) == 5
    assert table["decision"].tolist() == ["defective", "good", "good", "good", ERROR]
    assert table["score"].dropna().is_monotonic_decreasing
    defect, broken = table.iloc[0], table.iloc[-1]
    assert "broken.png" in broken["error"] and np.isnan(broken["score"])
    assert defect["area"] > 0 and len(defect["box"].split(",")) == 4 and defect["error"] == ""
    drawn = [path for path in (tmp_path / "overlays").rglob("*") if path.is_file()]
    assert drawn == [overlay_path(tmp_path / "overlays", inspector.card, defect["path"])]


def test_workers_give_the_same_table(predict, folder, tmp_path, inspector, monkeypatch):
    expected = predict(find_images(str(folder)))
    (PredictionLog.of(tmp_path / "log", inspector.card)).file.unlink()
    monkeypatch.setattr(Inspector, "batch_size", 2)
    found = predict(find_images(str(folder)), workers=1)
    assert found["path"].tolist() == expected["path"].tolist()
    np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-4, atol=1e-3)


def test_what_is_known_is_not_predicted_again(predict, folder, counted):
    files = find_images(str(folder))
    first = predict(files)
    assert sum(counted) == 4
    assert predict(files).equals(first) and sum(counted) == 4
    changed = files[-1]
    os.utime(changed, (1, 1))
    predict(files)
    assert sum(counted) == 5


def test_another_rate_predicts_only_what_lacks_an_overlay(predict, folder, counted):
    files = find_images(str(folder))
    predict(files)
    loose = predict(files, defective=-1e9, good=None)
    assert (loose["decision"] == "defective").sum() == 4
    assert sum(counted) == 4 + 3
    predict(files, defective=-1e9, good=None)
    assert sum(counted) == 4 + 3


def test_an_interrupted_prediction_goes_on(predict, folder, counted, tmp_path, inspector):
    files = find_images(str(folder))
    predict(files[:3])
    log = PredictionLog.of(tmp_path / "log", inspector.card)
    lines = log.file.read_text()
    log.file.write_text(lines[:-20])  # the power failed while the last line was written
    before = sum(counted)
    table = predict(files)
    assert len(table) == 5 and sum(counted) - before < 4
    paths = {str(file.resolve()) for file in files}
    assert log.read(paths).keys() == paths


def test_files_folders_and_patterns(folder):
    every = find_images(str(folder))
    assert len(every) == 5 and every == sorted(every)
    assert find_images(str(every[0])) == [every[0]]
    assert len(find_images(f"{folder}/level0/*.png")) == 2
    assert len(find_images(f"{folder}/**/*.png")) == 5


def test_links_are_followed_once_and_circles_end(folder, tmp_path, predict):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "far.png").write_bytes((folder / "level0/image 0.png").read_bytes())
    (folder / "link").symlink_to(elsewhere)
    (folder / "again").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder)
    (folder / "circle.png").symlink_to(folder / "circle.png")
    (folder / ".hidden").mkdir()
    (folder / ".hidden/thumbnail.png").write_bytes(b"no image")
    every = find_images(str(folder))
    assert len(every) == 7 and sum(file.name == "far.png" for file in every) == 1
    errors = predict(every).set_index("path")["error"]
    assert errors[str(folder / "circle.png")] and (errors != "").sum() == 2


def test_an_overlay_of_another_model_is_not_shown(inspector, tmp_path):
    other = inspector.card | {"pixel_range": "0..4095"}
    assert overlay_path(tmp_path, inspector.card, "a.png") != overlay_path(tmp_path, other, "a.png")


@pytest.mark.parametrize("typed", ["/nowhere", "*.gif", "{folder}/empty", "{folder}/*.tif"])
def test_no_image_is_an_error_that_names_what_was_typed(folder, typed):
    (folder / "empty").mkdir()
    typed = typed.format(folder=folder)
    with pytest.raises(InputError) as error:
        find_images(typed)
    assert f"'{typed}'" in str(error.value)


def test_pipes_devices_and_sparse_files_are_rows_with_errors(predict, folder):
    os.mkfifo(folder / "pipe.png")
    (folder / "zero.png").symlink_to("/dev/zero")
    with (folder / "sparse.png").open("wb") as sparse:
        sparse.truncate(16_000_000_000)
    errors = predict(find_images(str(folder))).set_index("path")["error"]
    assert "not a regular file" in errors[str(folder / "pipe.png")]
    assert "not a regular file" in errors[str(folder / "zero.png")]
    assert "16,000 MB" in errors[str(folder / "sparse.png")]
    assert (errors == "").sum() == 4
