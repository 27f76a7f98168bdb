"""Are all prototypes of patches in use, each for patches that look alike? Shares, and a gallery.

    python benchmarks/prototypes.py elpv --gallery prototypes.jpg   # after kedro run --pipelines=features

The closed form of seed 0 is fitted to the training normals. A prototype is in use if it is the nearest one of a patch
of the test normals, which had no part in choosing it. The gallery has one row for each of some prototypes in use, from
the most to the least used: the test patches nearest to it, at most one of each image.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from PIL import Image

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm
from mpfm_kedro.detectors.mpfm.patches import to_patches
from mpfm_kedro.detectors.mpfm.storage import unpack_closed_form
from mpfm_kedro.experiments.protocol import make_general_runs
from mpfm_kedro.experiments.run_data import select
from mpfm_kedro.experiments.specifications import Ours
from mpfm_kedro.experiments.trials import fit_pieces, pieces_of, plan_trials, read_trials
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.views import ORIGINAL
from project import open_project, parser

ROWS, COLUMNS = 12, 10  # of the gallery
SIDE, MARGIN = 72, 2  # of a patch in the gallery, in pixels
WIDTH = 3  # of a patch in the image, in positions: what smoothing averages


def main() -> None:
    """Print how many prototypes are in use, and draw the gallery."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--gallery", default="prototypes.jpg")
    given = arguments.parse_args()
    parameters, compute, (samples, features, images, cache) = open_project(
        given, "samples", "features", "images", "model_cache"
    )
    ours = Ours(parameters.prototypes, parameters.repairs, parameters.training, parameters.backbone)
    runs = make_general_runs(samples, 10, 1)
    (trial,) = read_trials(plan_trials(runs, [ours.untrained()]), runs)
    models = fit_pieces([trial], features, cache, None, "Prototypes", "cpu", compute)
    closed_form = unpack_closed_form(pieces_of(trial, models)["prototypes"].load())
    tested = trial.run["test_normals"]
    table = assign(closed_form, select(features, np.array(tested), [ORIGINAL]))
    for mode, own in table.groupby("mode"):
        print(usage(own["prototype"], int(mode), int((~closed_form.patches.unused[int(mode)]).sum())))
    grid = tuple(closed_form.patches.scale.shape[1:])
    gallery(table, samples.set_index("sample_id").loc[tested], images, grid).save(given.gallery, quality=85)


@torch.inference_mode()
def assign(closed_form: ClosedForm, rows: FeatureRows) -> pd.DataFrame:
    """The nearest prototype of each patch: image, position, mode, prototype and squared distance."""
    mode = closed_form.enter(closed_form.standardiser.z_of(rows)).mode
    found = []
    for part, maps in rows.map_batches():
        nearest = closed_form.patches.nearest(to_patches(maps), mode[part])
        positions = nearest.number.shape[1]
        place = {
            "image": np.arange(part.start, part.stop).repeat(positions),
            "position": np.tile(np.arange(positions), part.stop - part.start),
            "mode": mode[part].numpy().repeat(positions),
        }
        squares = {"prototype": nearest.number.flatten().numpy(), "square": nearest.square.flatten().numpy()}
        found.append(pd.DataFrame(place | squares))
    return pd.concat(found, ignore_index=True)


def usage(prototype: pd.Series, mode: int, number: int) -> str:
    """How many prototypes of a mode are the nearest of some patch, and how evenly."""
    share = prototype.value_counts(normalize=True)
    entropy = -(share * np.log(share)).sum() / np.log(number)
    return (
        f"mode {mode}: {len(share):,} of {number:,} prototypes are the nearest of one of {len(prototype):,} patches; "
        f"the most used has {share.max():.1%}; entropy of the assignments {entropy:.2f} of log K"
    )


def gallery(table: pd.DataFrame, samples: pd.DataFrame, images: ImageLoader, grid: tuple[int, int]) -> Image.Image:
    """One row per prototype, its nearest patches from left to right; prototypes evenly from most to least used."""
    several = table.groupby(["mode", "prototype"])["image"].nunique().loc[lambda number: number >= COLUMNS]
    order = several.sort_values(ascending=False, kind="stable").index
    chosen = [order[i] for i in np.linspace(0, len(order) - 1, min(ROWS, len(order))).astype(int)]
    step = SIDE + MARGIN
    sheet = Image.new("RGB", (COLUMNS * step - MARGIN, len(chosen) * step - MARGIN), "white")
    by_prototype = table.sort_values("square").groupby(["mode", "prototype"])
    for row, key in enumerate(chosen):
        nearest = by_prototype.get_group(key).drop_duplicates("image").head(COLUMNS)
        for column, one in enumerate(nearest.itertuples()):
            sample = samples.iloc[one.image]
            picture = images.read(sample["path"], sample["crop"], sample.get("pixel_range", ""))
            sheet.paste(patch(picture, one.position, grid), (column * step, row * step))
    return sheet


def patch(picture: Image.Image, position: int, grid: tuple[int, int]) -> Image.Image:
    """What is around a position of an image."""
    y, x = divmod(position, grid[1])
    width, height = picture.width / grid[1], picture.height / grid[0]
    half = WIDTH / 2
    box = ((x + 0.5 - half) * width, (y + 0.5 - half) * height, (x + 0.5 + half) * width, (y + 0.5 + half) * height)
    return picture.crop(tuple(round(side) for side in box)).resize((SIDE, SIDE))


if __name__ == "__main__":
    main()
