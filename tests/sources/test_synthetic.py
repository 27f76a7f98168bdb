"""Synthetic images: drawn once, always the same ones, whole even when two processes draw at once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import IngestionParameters
from mpfm_kedro.pipelines.ingestion.nodes import refuse_wrong_split, split_normals
from mpfm_kedro.sources import synthetic
from mpfm_kedro.sources.samples import LISTED

INGESTION = IngestionParameters(allow_partial=False, max_unreadable_share=0, max_megapixels=1)
NUMBER = sum(synthetic.FOLDERS.values())
DEFECTIVE = NUMBER - synthetic.FOLDERS["good"]
FILES = NUMBER + DEFECTIVE  # with the masks


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file below a folder."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.locate(tmp_path_factory.mktemp("data") / "not yet there")


def test_images_are_drawn_once(tmp_path, monkeypatch):
    folder = synthetic.locate(tmp_path)
    assert folder == tmp_path / "synthetic"
    assert len(contents(folder)) == FILES
    monkeypatch.setattr(synthetic, "draw", lambda *_: pytest.fail("drawn again"))
    (folder / "good" / "000.png").unlink()
    assert synthetic.locate(tmp_path) == folder
    assert len(contents(folder)) == FILES - 1
    assert names_in(tmp_path) == ["synthetic"]


def test_images_are_always_the_same(folder, tmp_path):
    np.random.seed(1)  # noqa: NPY002 (a seed set elsewhere changes nothing)
    assert contents(synthetic.locate(tmp_path)) == contents(folder)


def test_file_holds_the_drawing_and_each_drawing_is_another_one(folder):
    drawings = {
        (kind, number): synthetic.draw(kind, number)[0] for kind, n in synthetic.FOLDERS.items() for number in range(n)
    }
    for (kind, number), drawing in drawings.items():
        assert drawing.shape == (synthetic.SIZE, synthetic.SIZE, 3)
        assert drawing.dtype == np.uint8
        with Image.open(folder / kind / f"{number:03}.png") as image:
            np.testing.assert_array_equal(np.asarray(image), drawing)
    assert len({drawing.tobytes() for drawing in drawings.values()}) == NUMBER


@pytest.mark.parametrize("kind", ["spot", "scratch"])
def test_anomaly_is_no_normal_image_with_a_defect(kind):
    for number in range(synthetic.FOLDERS[kind]):
        assert (synthetic.draw(kind, number)[0] == synthetic.draw("good", number)[0]).mean() < 0.1


def test_masks_mark_the_defects(folder):
    table = synthetic.SOURCE.list_samples(folder)
    assert ((table["mask_path"] == "") == (table["label"] == 0)).all()
    for row in table[table["label"] == 1].to_dict("records"):
        image, mask = (np.asarray(Image.open(folder / row[name])) for name in ("path", "mask_path"))
        grey = image[..., 0]
        assert np.ptp(grey[mask > 0]) == 0  # a defect has one colour
        assert 0.005 < (mask > 0).mean() < 0.2


def test_table_has_the_numbers_and_the_split_of_the_source(folder):
    table = synthetic.SOURCE.list_samples(folder)
    assert list(table.columns) == LISTED
    assert table["sample_id"].is_monotonic_increasing and table["sample_id"].is_unique
    assert all((folder / path).is_file() for path in table["path"])
    assert ((table["defect_class"] == "") == (table["label"] == 0)).all()
    assert set(table["split"]) == {""}
    counts = synthetic.SOURCE.counts[""]
    assert counts.compare(table) == []
    divided = refuse_wrong_split(split_normals(table.assign(problem=""), INGESTION))
    assert divided["split"].value_counts().to_dict() == {"train": counts.train, "test": counts.test, "anomaly": 24}


def test_interrupted_drawing_is_not_taken_for_the_images(folder, tmp_path, monkeypatch):
    draw = synthetic.draw

    def interrupt(kind: str, number: int) -> np.ndarray:
        if kind == "scratch":
            raise KeyboardInterrupt
        return draw(kind, number)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(synthetic, "draw", interrupt)
        synthetic.locate(tmp_path)
    assert names_in(tmp_path) == []
    assert contents(synthetic.locate(tmp_path)) == contents(folder)


def test_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "synthetic").touch()
    with pytest.raises(InputError, match=f"Cannot draw images in {tmp_path / 'synthetic'}: Not a directory"):
        synthetic.locate(tmp_path)


def test_slower_process_uses_what_the_quicker_one_drew(folder, tmp_path, monkeypatch):
    draw, quicker = synthetic.draw, tmp_path / "synthetic"

    def overtaken(kind: str, number: int) -> np.ndarray:
        if not quicker.is_dir():
            quicker.mkdir()
            (quicker / "of the quicker one").touch()
        return draw(kind, number)

    monkeypatch.setattr(synthetic, "draw", overtaken)
    assert synthetic.locate(tmp_path) == quicker
    assert names_in(quicker) == ["of the quicker one"]
    assert names_in(tmp_path) == ["synthetic"]


def test_two_processes_at_once(folder, tmp_path):
    code = (
        "import sys; from pathlib import Path; from mpfm_kedro.sources import synthetic; "
        "print('ready', flush=True); sys.stdin.readline(); "
        "folder = synthetic.locate(Path(sys.argv[1])); print(len(synthetic.SOURCE.list_samples(folder)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        output, errors = racer.communicate(timeout=60)
        assert (output, racer.returncode) == (f"{NUMBER}\n", 0), errors
    assert names_in(tmp_path) == ["synthetic"]
    assert contents(tmp_path / "synthetic") == contents(folder)
