"""The images dataset: the loader of a dataset's images."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from mpfm_kedro.datasets.images import ImagesDataset


def test_dataset_gives_the_loader_and_writes_nothing(tmp_path: Path):
    (tmp_path / "good").mkdir()
    Image.new("RGB", (4, 4), (5, 5, 5)).save(tmp_path / "good" / "a.png")
    dataset = ImagesDataset(str(tmp_path / "files.parquet"), "folder", str(tmp_path), max_megapixels=0.5)
    loader = dataset.load()
    assert (loader.folder, loader.max_pixels) == (tmp_path, 500_000)
    assert loader.read("good/a.png").getpixel((0, 0)) == (5, 5, 5)
    assert dataset.exists()
    with pytest.raises(Exception, match="only read"):
        dataset.save("anything")
