"""A small production model of made images, with random weights of its backbones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torchvision.models import get_model

from mpfm_kedro.backbones.extraction import to_pixels
from mpfm_kedro.backbones.networks import build_backbone
from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import TrainingData
from mpfm_kedro.detectors.mpfm.detector import keep_final
from mpfm_kedro.evaluation.columns import PART_COLUMNS
from mpfm_kedro.inspection.model import FORMAT, Gallery, HeldOutScores, Model
from mpfm_kedro.inspection.thresholds import choose_threshold
from mpfm_kedro.parameters import IngestionParameters, InspectionParameters
from small_mpfm import fit, specify

STATISTICS = ["mean", "max", "std"]
INSPECTION = InspectionParameters(false_alarm_rate=0.01, confidence=0.95, overlays="flagged", workers=0)
INGESTION = IngestionParameters(allow_partial=False, max_unreadable_share=0.01, max_megapixels=100.0)


def made_image(rng: np.random.Generator, size: tuple[int, int] = (48, 48), defect: bool = False) -> Image.Image:
    """Stripes one way or the other, in two colours; a defect is a bright square."""
    kind = int(rng.integers(2))
    y, x = np.mgrid[: size[1], : size[0]]
    stripes = 30 * np.sin((y if kind else x) / 2 + rng.uniform(0, 6))[..., None]
    pixels = rng.normal([(40, 70, 30), (150, 90, 170)][kind] + stripes, 5)
    if defect:
        x, y = rng.integers(0, np.array(size) // 2 + 1)
        pixels[y : y + size[1] // 4 + 1, x : x + size[0] // 4 + 1] += 90
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def held_out_scores(normals: np.ndarray, anomalies: np.ndarray, classes: Sequence[str] = ()) -> HeldOutScores:
    """Scores of so many normal items and of known defects, whose four parts are equal to them."""
    tables = []
    for label, scores in enumerate([normals, anomalies]):
        names = [f"{label}-{i}" for i in range(len(scores))]
        table = pd.DataFrame({"sample_id": names, "label": label, "item": names, "score": scores})
        tables.append(table.assign(defect_class=list(classes) or "dent" if label else ""))
    table = pd.concat(tables, ignore_index=True)
    return HeldOutScores(table.assign(likeness=0.0, **dict.fromkeys(PART_COLUMNS, table["score"])))


@cache
def made_model(*backbones: tuple[str, int]) -> Model:
    """A model on backbones of torchvision (name, image size), by default one ResNet."""
    rng = np.random.default_rng(0)
    images = [made_image(rng, defect=i >= 48) for i in range(56)]
    found, specs, weights = [], [], []
    for number, (name, side) in enumerate(backbones or [("resnet18", 64)]):
        rows, spec, own = _extract(images, name, side, number)
        found.append(rows)
        specs.append(spec)
        weights.append(own)
    normals = replace(found[0], others=tuple(found[1:])).take(np.arange(48))
    known = [replace(rows.take(np.arange(48, 56)), source=np.arange(8)) for rows in found]
    anomalies = replace(known[0], others=tuple(known[1:]))
    data = TrainingData(normals, normals.take(np.arange(0)), anomalies)
    sizes = {"n_patch_prototypes": 30, "max_modes": 2, "min_mode_size": 8, "top_share": 0.05, "epochs": 5}
    pieces = fit(specify(n_backbones=len(specs), **sizes), data)
    normal_scores = np.linspace(-3, 3, 40)
    card = {
        **{"format": FORMAT, "dataset": "made", "category": "", "pixel_range": "", "files": {}, "backbones": specs},
        "keep_proportions": False,
        "heat_map": {"low": -3.0, "high": 6.0},
        "threshold": asdict(choose_threshold(normal_scores, 0.05, 0.9)),
    }
    gallery = pd.DataFrame({"sample_id": ["a"], "defect_class": [""], "thumbnail": [b""]})
    seen = held_out_scores(normal_scores, np.array([9.0]))
    z = np.zeros((1, specs[0]["pooled_size"]), dtype=np.float32)
    return Model(card, keep_final(pieces), weights, seen, Gallery(gallery, z))


def _extract(images: list[Image.Image], name: str, side: int, seed: int) -> tuple[FeatureRows, dict[str, Any], Any]:
    torch.manual_seed(seed)
    weights = get_model(name, weights=None).state_dict()
    backbone = build_backbone(name, weights, ["auto"], ["auto"])
    with torch.inference_mode():
        pooled, maps = backbone.features(torch.stack([to_pixels(image, side) for image in images]), STATISTICS)
    place = np.arange(len(images))
    spec = {
        **{"backbone": name, "image_size": side, "layers": ["auto"], "map_layers": ["auto"]},
        **{"statistics": STATISTICS, "precision": "fp32"},
        **{"pooled_size": pooled.shape[1], "map_shape": list(maps.shape[1:])},
    }
    return FeatureRows(pooled.numpy(), maps.numpy(), place, place), spec, weights
