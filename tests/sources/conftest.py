"""Every dataset in its published layout, made small, with the traps of the real copies."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Mark = tuple[int, int]
DATA = Path(__file__).parents[2].parent / "shared" / "data"


def draw(file: Path, size: tuple[int, int] = (8, 6), marks: tuple[Mark, ...] = (), mode: str = "L") -> Path:
    """A black image of ``size`` with white pixels at ``marks`` (x, y)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("L", size)
    for mark in marks:
        image.putpixel(mark, 255)
    image.convert(mode).save(file)
    return file


def mvtec_ad(folder: Path) -> None:
    for category, defects in (("carpet", ("color", "hole")), ("toothbrush", ("defective",))):
        for name in ("train/good/000.png", "train/good/001.png", "test/good/000.png"):
            draw(folder / category / name)
        for defect in defects:
            draw(folder / category / "test" / defect / "000.png")
            draw(folder / category / "ground_truth" / defect / "000_mask.png", marks=((1, 1),))
        (folder / category / "readme.txt").write_text("as published")


def optical(folder: Path) -> None:
    for number in range(1, 11):
        for part, first in (("Train", 1), ("Test", 3)):
            inner = folder / f"Class{number}" / f"Class{number}" / part
            draw(inner / f"000{first}.PNG")
            draw(inner / f"000{first + 1}.PNG")
            draw(inner / "Label" / f"000{first + 1}_label.PNG", marks=((2, 2),))
            lines = ["1", f"{first}\t0\t000{first}.PNG\t0\t0"]
            lines.append(f"{first + 1}\t1\t000{first + 1}.PNG\t1\t000{first + 1}_label.PNG")
            (inner / "Label" / "Labels.txt").write_text("\r\n".join(lines) + "\r\n")


def sdd(folder: Path) -> None:
    draw(folder / "kos01" / "Part0.jpg", (6, 10))
    draw(folder / "kos01" / "Part0_label.bmp", (6, 10), marks=((5, 9),), mode="P")
    draw(folder / "kos02" / "Part3.jpg", (6, 11))
    draw(folder / "kos02" / "Part3_label.bmp", (6, 11))


def aitex(folder: Path) -> None:
    for name in ("2306881-210020u/0001_000_05.png", "2311694-1930c7u/0001_000_05.png"):
        draw(folder / "NODefect_images" / name, (512, 256))
    masks: dict[str, list[tuple[Mark, ...]]] = {
        "0001_002_00": [((300, 7),)],
        "0044_019_04": [((1, 1),), ((511, 255),)],
        "0094_027_05": [((599, 0),)],
        "0106_010_03": [()],
    }
    for name, marks in masks.items():
        size = (600, 256) if name == "0094_027_05" else (512, 256)
        draw(folder / "Defect_images" / f"{name}.png", size)
        for number, marked in enumerate(marks, 1):
            suffix = str(number) if len(marks) > 1 else ""
            draw(folder / "Mask_images" / f"{name}_mask{suffix}.png", size, marked, mode="LA")
    draw(folder / "Defect_images" / "0100_025_08.png", (512, 256))


def elpv(folder: Path) -> None:
    cells = [("1", 0.0, "mono"), ("2", 1.0, "poly"), ("3", 0.3333333333333333, "mono"), ("4", 1.0, "mono")]
    for number, _, _ in cells:
        draw(folder / "images" / f"cell000{number}.png")
    lines = [f"images/cell000{number}.png  {value}  {kind}" for number, value, kind in cells]
    (folder / "labels.csv").write_text("\n".join(lines))


def mastcam(folder: Path) -> None:
    names = [
        "train_typical/mcam1_sol1_0.npy",
        "test_typical/mcam2_sol2_0.npy",
        "validation_typical/mcam3.npy",
    ]
    names += ["test_novel/drt/mcam4.npy", "test_novel/dump-pile/mcam4.npy", "test_novel/veins/mcam5.npy"]
    names += ["test_novel/all/mcam4.npy", "test_novel/all/mcam5.npy"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(folder / name, np.zeros((4, 4, 6), np.uint8))


def hyper_kvasir(folder: Path) -> None:
    tract = folder / "labeled-images" / "upper-gi-tract"
    for name in ("pylorus", "retroflex-stomach", "z-line"):
        draw(tract / "anatomical-landmarks" / name / "a.jpg")
    for name in ("barretts", "barretts-short-segment", "esophagitis-a", "esophagitis-b-d"):
        draw(tract / "pathological-findings" / name / "a.jpg")
    draw(folder / "labeled-images" / "lower-gi-tract" / "anatomical-landmarks" / "cecum" / "a.jpg")


def brainmri(folder: Path) -> None:
    for name in ("no/1 no.jpeg", "no/No11.jpg", "no/N3.JPG", "yes/Y1.jpg", "yes/Y2.JPG", "yes/Y3.png"):
        draw(folder / name)


def headct(folder: Path) -> None:
    for number in range(3):
        draw(folder / "head_ct" / "head_ct" / f"{number:03d}.png")
    (folder / "labels.csv").write_text("id, hemorrhage\n0, 1\n1, 1\n2, 0\n")


def own_folder(folder: Path) -> None:
    for name in ("good/a.png", "good/b.jpg", "scratch/a.png", "dent/a.PNG"):
        draw(folder / name)


BUILDERS: dict[str, Callable[[Path], None]] = {
    "mvtec_ad": mvtec_ad,
    "optical": optical,
    "sdd": sdd,
    "aitex": aitex,
    "elpv": elpv,
    "mastcam": mastcam,
    "hyper_kvasir": hyper_kvasir,
    "brainmri": brainmri,
    "headct": headct,
    "folder": own_folder,
}


@pytest.fixture(name="draw")
def draw_fixture() -> Callable[..., Path]:
    return draw


@pytest.fixture
def build(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a dataset below a data root and gives its folder."""

    def make(name: str) -> Path:
        folder = tmp_path / "raw" / name
        folder.mkdir(parents=True)
        BUILDERS[name](folder)
        return folder

    return make


@pytest.fixture
def real() -> Callable[[str], Path]:
    """Real images, where this checkout has them beside it."""

    def find(name: str) -> Path:
        if not (DATA / name).is_dir():
            pytest.skip(f"the real images {DATA / name} are not on this machine")
        return DATA / name

    return find
