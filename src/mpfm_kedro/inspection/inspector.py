"""Inspect images with a production model: from an image to a score, a decision, and where the defect is.

    inspector = Inspector.load("data/06_models/elpv/production/model")
    prediction = inspector.predict("new.png")
    prediction.decision, prediction.score, prediction.regions

Kedro is not needed.
"""

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mpfm_kedro.atomic import first_line
from mpfm_kedro.backbones.backbone import Backbone
from mpfm_kedro.backbones.extraction import autocast
from mpfm_kedro.backbones.networks import build_backbone
from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.compute import torch_device
from mpfm_kedro.detectors.mpfm.calibration import PARTS
from mpfm_kedro.detectors.mpfm.detector import load
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.position_maps import smooth_maps
from mpfm_kedro.inspection.heat_maps import USUAL, Region, find_regions, overlay, scale
from mpfm_kedro.inspection.likeness import likeness
from mpfm_kedro.inspection.model import Model, load_model
from mpfm_kedro.inspection.preparation import MAX_MEGAPIXELS, ImageLike, Prepared, prepare, read_image
from mpfm_kedro.inspection.thresholds import Threshold, decide, p_values

BATCH = 32
NEAREST = 4


@dataclass(frozen=True)
class Prediction:
    """The prediction for an image."""

    score: float  # higher for anomalies; the thresholds are on its scale
    p_value: float  # share of held-out normals that score as high
    decision: str  # good, uncertain or defective
    mode: int  # the closest mode of normals; of several backbones, by the first
    parts: dict[str, float]  # S_g, S_a, S_r, S_n; of several backbones, those of the first
    shares: dict[str, float]  # what each of them adds to the score, summed over all backbones
    heat_map: np.ndarray = field(repr=False)  # 0..1 (h, w), on a grid coarser than the image
    regions: list[Region]  # that stand out, in pixels of the image, the largest first
    size: tuple[int, int]  # width and height of the image
    likeness: float  # to a known defect, 0 to 1: above that of normals it is not good
    z: np.ndarray = field(repr=False)  # its standardised pooled statistics

    @property
    def flagged_by(self) -> str:
        """The score that adds most to the sum."""
        return max(self.shares, key=lambda part: self.shares[part])


@dataclass(frozen=True)
class Neighbour:
    """An image that the model has learned from, and its distance to a new one."""

    sample_id: str
    defect_class: str
    thumbnail: bytes = field(repr=False)
    distance: float


class Inspector:
    """A model that is ready to inspect images; those above ``max_megapixels`` are refused before they are decoded."""

    def __init__(self, model: Model, device: str = "auto", max_megapixels: float = MAX_MEGAPIXELS) -> None:
        self.model = model
        self.max_megapixels = max_megapixels
        self.card = model.card
        self.device = torch_device(device)
        self._specs = self.card["backbones"]
        self._backbones: list[Backbone] = [
            build_backbone(spec["backbone"], weights, spec["layers"], spec["map_layers"]).to(self.device)
            for spec, weights in zip(self._specs, model.backbones, strict=True)
        ]
        self._detector = load(model.detector, self.device)
        self.prepare = partial(  # an image as the backbones read it; no method, as other processes need no model for it
            prepare,
            sizes=[spec["image_size"] for spec in self._specs],
            pixel_range=self.card["pixel_range"],
            max_megapixels=max_megapixels,
            keep_proportions=self.card["keep_proportions"],
        )
        known = model.gallery.is_known
        self._members = np.flatnonzero(~known), np.flatnonzero(known)
        self._gallery = [torch.from_numpy(model.gallery.z[members]) for members in self._members]
        self._squares = np.square(model.gallery.z).sum(1)
        self.normal_scores = model.calibration.item_scores
        self.threshold = self.threshold_for(self.card["threshold"]["rate"], self.card["threshold"]["confidence"])

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto", max_megapixels: float = MAX_MEGAPIXELS) -> Self:
        """The inspector of a model folder, whose files are verified first.

        Networks of torch.fx refer to themselves: those of former inspectors are freed here, not dozens later.
        """
        gc.collect()
        model = load_model(Path(folder))
        try:
            return cls(model, device, max_megapixels)
        except InputError:
            raise
        except Exception as error:  # numbers of a foreign model that do not fit each other
            raise InputError(f"The model in {folder} cannot be used: {first_line(error)}") from error

    def threshold_for(self, rate: float, confidence: float) -> Threshold:
        """The thresholds of another false-alarm rate, without training."""
        return self.model.calibration.threshold(rate, confidence)

    @property
    def batch_size(self) -> int:
        """Images per batch."""
        pairs = zip(self._backbones, self._specs, strict=True)
        return min(backbone.images_per_batch(spec["image_size"], BATCH) for backbone, spec in pairs)

    def predict(self, image: ImageLike, threshold: Threshold | None = None) -> Prediction:
        """The prediction for one image: a path, an array (H, W), (H, W, 3) or a PIL image."""
        (prediction,) = self.predict_many([image], threshold)
        return prediction

    def predict_many(self, images: Iterable[ImageLike], threshold: Threshold | None = None) -> Iterator[Prediction]:
        """The predictions for many images, batch by batch; memory does not grow with their number."""
        remaining = iter(images)
        while batch := list(islice(remaining, self.batch_size)):
            yield from self.predict_prepared([self.prepare(image) for image in batch], threshold)

    def predict_prepared(self, prepared: Sequence[Prepared], threshold: Threshold | None = None) -> list[Prediction]:
        """The predictions for prepared images."""
        pixels = [torch.stack(images) for images in zip(*(image.pixels for image in prepared), strict=True)]
        return self.judge(self.features(pixels), [image.size for image in prepared], threshold)

    @torch.inference_mode()
    def features(self, pixels: Sequence[Tensor]) -> FeatureRows:
        """The features of images, (n, 3, S, S) for each backbone, as they would be read from a store."""
        rows: list[FeatureRows] = []
        index = np.arange(len(pixels[0]))
        for backbone, spec, images in zip(self._backbones, self._specs, pixels, strict=True):
            with autocast(self.device, spec["precision"]):
                pooled, maps = backbone.features(images.to(self.device), spec["statistics"])
            rows.append(FeatureRows(pooled.cpu().numpy(), maps.cpu().numpy(), index, index))
        return replace(rows[0], others=tuple(rows[1:]))

    @torch.inference_mode()
    def judge(
        self, rows: FeatureRows, sizes: Sequence[tuple[int, int]], threshold: Threshold | None = None
    ) -> list[Prediction]:
        """The predictions for images of known features and sizes (width, height)."""
        result = self._detector.inspect(rows)
        maps = smooth_maps(result.positions.numpy(), sizes=sizes if self.card["keep_proportions"] else None)
        heat = scale(maps, self.card["heat_map"]["low"], self.card["heat_map"]["high"])
        z = self._detector.first.standardiser.z_of(rows).cpu()
        alike = likeness(z, *self._gallery).double().numpy()
        scores = result.score.double().numpy()
        decisions = decide(scores, threshold or self.threshold, alike)
        p = p_values(scores, self.normal_scores)
        return [
            Prediction(
                score=float(scores[i]),
                p_value=float(p[i]),
                decision=str(decisions[i]),
                mode=int(result.mode[i]),
                parts=dict(zip(PARTS, result.parts[i].tolist(), strict=True)),
                shares=dict(zip(PARTS, result.contributions[i].tolist(), strict=True)),
                heat_map=heat[i],
                regions=find_regions(heat[i], USUAL, size),
                size=size,
                likeness=float(alike[i]),
                z=z[i].numpy(),
            )
            for i, size in enumerate(sizes)
        ]

    def overlay(self, image: ImageLike, prediction: Prediction) -> Image.Image:
        """The image with its heat map over it."""
        return overlay(read_image(image, self.card["pixel_range"], self.max_megapixels), prediction.heat_map)

    def explain(self, prediction: Prediction, nearest: int = NEAREST) -> tuple[list[Neighbour], list[Neighbour]]:
        """The nearest normals and the nearest known anomaly of the model's gallery, by the distance of z."""
        gallery = self.model.gallery
        far = self._squares - 2 * gallery.z @ prediction.z  # ‖g − z‖² but for ‖z‖²
        found: list[list[Neighbour]] = []
        for members, number in zip(self._members, (nearest, 1), strict=True):
            index = members[np.argsort(far[members], kind="stable")[:number]]
            distances = np.linalg.norm(gallery.z[index] - prediction.z, axis=1) / np.sqrt(len(prediction.z))
            rows = gallery.table.iloc[index][["sample_id", "defect_class", "thumbnail"]]
            found.append([Neighbour(*row) for row in rows.assign(distance=distances).itertuples(index=False)])
        return found[0], found[1]
