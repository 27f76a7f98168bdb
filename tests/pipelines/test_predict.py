"""The pipeline predict, through Kedro: table and page, also where a file cannot be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

PROJECT = Path(__file__).parents[2]


def test_a_file_that_cannot_be_read_is_a_row_and_the_run_goes_on(fitted_project: Path, tmp_path: Path):
    images, out = tmp_path / "images", fitted_project / "out"
    images.mkdir()
    shutil.copy(fitted_project / "raw/synthetic/spot/000.png", images / "spot.png")
    (images / "broken.png").write_bytes(b"no image")
    bootstrap_project(PROJECT)
    given = {"data_root": str(fitted_project / "raw"), "output_root": str(out), "images": str(images)}
    with KedroSession.create(PROJECT, env="test", runtime_params=given) as session:
        session.run(pipeline_names=["predict"])
    folder = out / "08_reporting/synthetic/predictions"
    table = pd.read_csv(folder / "predictions.csv")
    assert table["decision"].tolist() == ["defective", "error"]
    page = (folder / "predictions.html").read_text()
    assert "spot.png" in page and "broken.png cannot be used" in page
    assert list((folder / "gallery").glob("image-*.jpg")) and list((folder / "overlays").rglob("*.jpg"))
