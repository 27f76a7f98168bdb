"""Synthetic images: drawn once, always the same ones, whole even when two processes draw at once."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mpfm_kedro.sources import synthetic

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


def test_masks_mark_the_defects(folder):
    table = synthetic.SOURCE.list_samples(folder)
    assert ((table["mask_path"] == "") == (table["label"] == 0)).all()
    for row in table[table["label"] == 1].to_dict("records"):
        image, mask = (np.asarray(Image.open(folder / row[name])) for name in ("path", "mask_path"))
        grey = image[..., 0]
        assert np.ptp(grey[mask > 0]) == 0  # a defect has one colour
        assert 0.005 < (mask > 0).mean() < 0.2


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
