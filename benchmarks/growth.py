"""How time, memory and disk of every stage grow with the number of images: ``make benchmark-growth``.

    python benchmarks/growth.py                          # ELPV once, 4 times and 16 times, 40 minutes on two cores
    python benchmarks/growth.py --sizes 1,2 --images 300 # a trial
    python benchmarks/growth.py --sizes 1 --images 300 --image-size 448

Copies of an image are flipped, turned and a little brighter or darker, with a fixed seed, and written as files of a
folder of own images. Each size is one ``kedro run`` of the general setting (M = 10, seed 100) in an empty output
folder. Copies of one image train and test: costs are measured here, not AUC.

A size that was measured before by the same revision on the same machine is not measured again. A run with other sizes,
images or pixels than by default is a trial: its page is printed, and written only with ``--report``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from PIL import Image

from growth_report import draw, write_report
from machine import hardware, published, write_page
from mpfm_kedro.provenance import code_revision
from mpfm_kedro.sources import elpv
from stage_costs import run_measured

SYMMETRIES = [None, *Image.Transpose]  # the eight of a square, the identity first
BRIGHTNESS, DEGREES, INSIDE = 0.1, 3.0, 0.9  # largest changes, and what is left of a turned image's sides
VIEWS = "features.cutmix_views=0,features.anomaly_views=[hflip]"
RUN = "n_anomalies=10,n_seeds=1,first_seed=100"
SEED = 0


def write_images(folder: Path, copies: int, at_most: int) -> int:
    """Write ``copies`` of ELPV's images as a folder of own images; returns how many files there are."""
    raw = elpv.SOURCE.locate(Path("data/01_raw"))
    listed = elpv.SOURCE.list_samples(raw)
    chosen = listed.sample(min(at_most or len(listed), len(listed)), random_state=SEED).sort_values("path")
    targets = [folder / name for name in chosen["defect_class"].replace("", "good")]
    for target in set(targets):
        target.mkdir(parents=True, exist_ok=True)
    pairs = zip(chosen["path"], targets, strict=True)
    Parallel(n_jobs=-1)(delayed(write_copies)(raw / path, target, copies) for path, target in pairs)
    return len(chosen) * copies


def write_copies(file: Path, target: Path, copies: int) -> None:
    """Write an image and its changed copies to a folder."""
    shutil.copy(file, target / f"{file.stem}.0.png")
    with Image.open(file) as image:
        for number in range(1, copies):
            rng = np.random.default_rng([SEED, number, *file.stem.encode()])
            changed(image.convert("L"), number, rng).save(target / f"{file.stem}.{number}.png")


def changed(image: Image.Image, number: int, rng: np.random.Generator) -> Image.Image:
    """A copy of an image: one of the eight symmetries, brighter or darker, and after the first eight also turned."""
    turn = SYMMETRIES[number % len(SYMMETRIES)]
    image = image if turn is None else image.transpose(turn)
    if number >= len(SYMMETRIES):
        edge = [(1 - INSIDE) / 2 * side for side in image.size]
        box = (edge[0], edge[1], image.width - edge[0], image.height - edge[1])
        turned = image.rotate(rng.uniform(-DEGREES, DEGREES), Image.Resampling.BICUBIC)
        image = turned.resize(image.size, Image.Resampling.BICUBIC, box)
    factor = 1 + rng.uniform(-BRIGHTNESS, BRIGHTNESS)
    return image.point([min(255, round(value * factor)) for value in range(256)])


def measure(copies: int, given: argparse.Namespace) -> dict[str, Any]:
    """The record of one size: what was measured before, or what is measured now."""
    name = f"growth_{given.images or 'all'}_{copies}x_{given.image_size}px"
    record = given.folder / f"{name}.json"
    about = hardware() | {"revision": code_revision()}
    known = json.loads(record.read_text()) if record.is_file() else {}
    if known | about == known:
        print(f"{copies}x: measured before, {record}")
        return dict(known)
    folder = given.folder / name
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted: its times would be those of a part
    n_images = write_images(folder / "images", copies, given.images)
    print(f"{copies}x: {n_images:,} images are written", flush=True)
    paths = f"dataset=folder,name=growth,data_root={folder / 'images'},output_root={folder / 'out'}"
    params = f"{paths},image_size={given.image_size},{RUN},{VIEWS}"
    arguments = ["run", "--pipelines=general_setting", f"--params={params}"]
    found = run_measured(arguments, folder / "out", given.folder / f"{name}.log")
    found |= about | {"copies": copies, "images": n_images, "image_size": given.image_size, "date": str(date.today())}
    record.write_text(json.dumps(found, indent=1))
    shutil.rmtree(folder)
    return found


def command(given: argparse.Namespace) -> str:
    """The command as it is said in the report: without folders."""
    images = f" --images {given.images}" if given.images else ""
    return f"python benchmarks/growth.py --sizes {given.sizes}{images} --image-size {given.image_size}"


def main() -> None:
    """Measure all sizes, print and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--sizes", default="1,4,16", help="how often ELPV is there, smallest first")
    parser.add_argument("--images", type=int, default=0, help="images of ELPV, drawn at random; 0: all")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "mpfm_growth", help="to work in")
    parser.add_argument("--report", type=Path, help="folder of growth.md and growth.png")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    measured = [measure(copies, given) for copies in sorted(int(size) for size in given.sizes.split(","))]
    page = published(parser, given, "growth.md", "sizes", "images", "image_size")
    page = given.report / "growth.md" if given.report else page
    write_page(page, write_report(measured, command(given)))
    if page:
        draw(measured).savefig(page.with_name("growth.png"), dpi=110)


if __name__ == "__main__":
    main()
