"""The pipeline predict, through Kedro: table and page, also where a file cannot be read."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from mpfm_kedro.datasets.inspection import EarlierPredictionsDataset
from mpfm_kedro.errors import InputError

PROJECT = Path(__file__).parents[2]


def predict(given: dict[str, str]) -> None:
    bootstrap_project(PROJECT)
    with KedroSession.create(PROJECT, env="test", runtime_params=given) as session:
        session.run(pipeline_names=["predict"])


def test_a_file_that_cannot_be_read_is_a_row_and_the_run_goes_on(fitted_project: Path, tmp_path: Path):
    images, out = tmp_path / "images", fitted_project / "out"
    images.mkdir()
    shutil.copy(fitted_project / "raw/synthetic/spot/000.png", images / "spot.png")
    (images / "link.png").symlink_to(fitted_project / "raw/synthetic/spot/000.png")
    (images / "broken.png").write_bytes(b"no image")
    given = {"data_root": str(fitted_project / "raw"), "output_root": str(out), "images": str(images)}
    predict(given | {"batch": "mixed"})
    folder = out / "08_reporting/synthetic/predictions/mixed"
    table = pd.read_csv(folder / "predictions.csv")
    assert table["decision"].tolist() == ["defective", "defective", "error"]
    assert table["path"].tolist() == [str(images / name) for name in ("link.png", "spot.png", "broken.png")]
    assert table["score"][0] == table["score"][1], "a link has its own name, and shows what it leads to"
    page = (folder / "predictions.html").read_text()
    assert "spot.png" in page and "broken.png cannot be used" in page
    assert list((folder / "pictures").glob("image-*.jpg")) and list((folder / "overlays").glob("*.jpg"))
    with pytest.raises(InputError, match="'batch' = 'mixed': there are predictions"):
        predict(given | {"batch": "mixed"})
    predict(given)  # without a name it is the time
    batches = sorted(path.name for path in folder.parent.iterdir())
    assert len(batches) == 2 and re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", batches[0])
    earlier = EarlierPredictionsDataset(str(folder.parent)).load()
    assert sorted(Path(path).name for path in earlier["path"]) == ["broken.png", "link.png", "spot.png"]
