"""Are small defects found better in tiles than in whole images? AUC of the general setting, an image by its worst tile.

    python benchmarks/tiles.py tiles DATA_ROOT/mvtec_ad/screw TILES   # resized to 448 px, cut into 2 × 2
    kedro run --pipelines=features --params=dataset=folder,data_root=TILES,image_size=224
    python benchmarks/tiles.py folder --data-root TILES --seeds 2

A tile of an image is named <image>.<number>.png. Tiles of a known anomaly are learned from where its mask says that the
defect is; all tiles of a test image are scored.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from sklearn.metrics import roc_auc_score

from mpfm_kedro.experiments.protocol import make_general_runs, records
from mpfm_kedro.experiments.specifications import Ours
from mpfm_kedro.experiments.trials import fit_pieces, plan_trials, read_trials, score_trials
from project import open_project, parser

SIDE, TILES = 448, 2  # of the whole image in pixels, and along each of its axes
FIRST_SEED = 100  # a development seed
LEAST_DEFECT = 20  # pixels of a tile
TILED = ("train_normals", "known_anomalies", "test_normals", "test_anomalies")  # of a run, as images at first


def cut(category: Path, target: Path) -> None:
    """Write the tiles of all images, and their masks as MVTec AD has them."""
    for file in sorted(category.glob("t*/*/*.png")):
        mask = category / "ground_truth" / file.parent.name / f"{file.stem}_mask.png"
        for number, tile in enumerate(tiles(Image.open(file).convert("RGB").resize((SIDE, SIDE)))):
            save(tile, target / file.relative_to(category).with_name(f"{file.stem}.{number}.png"))
        if mask.exists():
            for number, tile in enumerate(tiles(Image.open(mask).convert("L").resize((SIDE, SIDE)))):
                save(tile, target / "ground_truth" / file.parent.name / f"{file.stem}.{number}_mask.png")


def tiles(image: Image.Image) -> list[Image.Image]:
    """The tiles of an image, row by row."""
    side = SIDE // TILES
    corners = [(x * side, y * side) for y in range(TILES) for x in range(TILES)]
    return [image.crop((x, y, x + side, y + side)) for x, y in corners]


def save(image: Image.Image, file: Path) -> None:
    """Write an image, with the folders above it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file)


def plan_runs(samples: pd.DataFrame, root: Path, n_seeds: int) -> pd.DataFrame:
    """Runs over whole images, in which every image stands for its tiles."""
    whole = samples.assign(sample_id=image_of(samples["sample_id"])).drop_duplicates("sample_id")
    tiles_of = samples.groupby(image_of(samples["sample_id"]))["sample_id"].agg(list)
    masks = samples.set_index("sample_id")["mask_path"]
    planned = []
    for run in records(make_general_runs(whole, [10, 1], n_seeds, FIRST_SEED)):
        own = {name: [tile for image in run[name] for tile in tiles_of[image]] for name in TILED}
        own["known_anomalies"] = [tile for tile in own["known_anomalies"] if is_defective(root / masks[tile])]
        planned.append(run | own)
    return pd.DataFrame(planned)


def image_of(tiles: pd.Series) -> pd.Series:
    """The names of the images that some tiles are of."""
    return tiles.str.replace(r"\.\d+\.png$", "", regex=True)


def is_defective(mask: Path) -> bool:
    """Whether a tile's mask has a part of the defect."""
    return int((np.asarray(Image.open(mask)) > 127).sum()) >= LEAST_DEFECT


def main() -> None:
    """Fit, score, print the AUC over images of each run."""
    given = parser(str(__doc__).splitlines()[0]).parse_args()
    parameters, compute, (samples, features, cache) = open_project(given, "samples", "features", "model_cache")
    ours = Ours(parameters.prototypes, parameters.repairs, parameters.training, parameters.backbone)
    runs = plan_runs(samples, Path(given.data_root), given.seeds)
    trials = read_trials(plan_trials(runs, [ours(), ours.untrained()]), runs)
    initial = fit_pieces(trials, features, cache, None, "Prototypes", "cpu", compute)
    models = initial | fit_pieces(trials, features, cache, initial, "Training", "cpu", compute)
    scores, _ = score_trials(trials, features, models, cache, "cpu", compute)
    scores["image"] = image_of(scores["sample"])
    for (method, number, seed), own in scores.groupby(["method", "n_anomalies", "seed"]):
        image = own.groupby("image").agg({"label": "max", "score": "max", "score_g": "max", "score_r": "max"})
        found = [roc_auc_score(image["label"], image[name]) for name in ("score", "score_g", "score_r")]
        print(method, f"M={number}", f"seed {seed}", "score, S_g, S_r:", *(f"{auc:.3f}" for auc in found))


if __name__ == "__main__":
    if sys.argv[1] == "tiles":
        cut(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
