"""A production model at work: from an image to a score, a decision, and where the defect is.

    inspector = Inspector.load("data/06_models/elpv/production/model")
    prediction = inspector.predict("new.png")
    prediction.decision, prediction.score, prediction.regions

No Kedro is needed here.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mpfm_kedro.backbones.building import build_backbone
from mpfm_kedro.backbones.extraction import Backbone, autocast, images_per_batch
from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.mpfm.calibration import PARTS
from mpfm_kedro.detectors.mpfm.detector import load
from mpfm_kedro.errors import InputError
from mpfm_kedro.files import first_line
from mpfm_kedro.images.position_maps import smooth_maps
from mpfm_kedro.inspection.heat_maps import USUAL, Region, find_regions, overlay, scale
from mpfm_kedro.inspection.model import Model, load_model
from mpfm_kedro.inspection.preparation import MAX_MEGAPIXELS, ImageLike, Prepared, prepare, read_image
from mpfm_kedro.inspection.thresholds import Promise, decide, item_scores, p_values, promise
from mpfm_kedro.parallel import torch_device

BATCH = 32
NEAREST = 4


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image.

    Args:
        score: higher for anomalies; the thresholds are on its scale.
        p_value: share of unseen normals that score as high.
        decision: good, uncertain or defective.
        mode: the group of normals that the image is likest; of several backbones, by the first.
        parts: S_g, S_a, S_r, S_n; of several backbones, those of the first.
        shares: what each of them adds to the score, summed over all backbones.
        heat_map: 0..1 (h, w), on a grid coarser than the image.
        regions: that stand out, in pixels of the image, the largest first.
        size: width and height of the image.
        z: its standardised pooled statistics.
    """

    score: float
    p_value: float
    decision: str
    mode: int
    parts: dict[str, float]
    shares: dict[str, float]
    heat_map: np.ndarray = field(repr=False)
    regions: list[Region]
    size: tuple[int, int]
    z: np.ndarray = field(repr=False)

    @property
    def flagged_by(self) -> str:
        """The score that adds most to the sum."""
        return max(self.shares, key=lambda part: self.shares[part])


@dataclass(frozen=True)
class Likeness:
    """An image that the model has learned from, and how far it is."""

    sample_id: str
    defect_class: str
    thumbnail: bytes = field(repr=False)
    distance: float


class Inspector:
    """A model that is ready to inspect images.

    Args:
        model: of a model folder.
        device: auto, cpu or cuda.
        max_megapixels: larger images are refused before they are decoded (ingestion.max_megapixels in the project).
    """

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
        gallery = model.gallery
        self._squares = np.square(gallery.z).sum(1)
        columns = (gallery.table[name].tolist() for name in ("sample_id", "defect_class", "thumbnail"))
        self._shown: list[tuple[str, str, bytes]] = list(zip(*columns, strict=True))
        normal = np.array([defect_class == "" for _, defect_class, _ in self._shown], dtype=bool)
        self._normals, self._anomalies = np.flatnonzero(normal), np.flatnonzero(~normal)
        self.normal_scores = item_scores(model.calibration.normal_scores, model.calibration.normal_items)
        stated = self.card["promise"]
        self.promise = self.promised(stated["rate"], stated["confidence"])

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto", max_megapixels: float = MAX_MEGAPIXELS) -> Inspector:
        """The inspector of a model folder, whose files are checked first.

        Networks of torch.fx refer to themselves: those of inspectors that are gone are freed here, not dozens later.
        """
        gc.collect()
        model = load_model(Path(folder))
        try:
            return cls(model, device, max_megapixels)
        except InputError:
            raise
        except Exception as error:  # numbers of a foreign model that do not fit each other
            raise InputError(f"The model in {folder} cannot be used: {first_line(error)}") from error

    def promised(self, rate: float, confidence: float) -> Promise:
        """The thresholds of another false-alarm rate; nothing is trained again."""
        return promise(self.normal_scores, rate, confidence)

    @property
    def sizes(self) -> tuple[int, ...]:
        """S, the side of the image that each backbone reads."""
        return tuple(spec["image_size"] for spec in self._specs)

    @property
    def batch_size(self) -> int:
        """How many images are computed at once."""
        return min(images_per_batch(each, size, BATCH) for each, size in zip(self._backbones, self.sizes, strict=True))

    def predict(self, image: ImageLike, promised: Promise | None = None) -> Prediction:
        """What the model says of one image: a path, an array (H, W), (H, W, 3) or a PIL image."""
        (prediction,) = self.predict_prepared([self.prepare(image)], promised)
        return prediction

    def predict_many(self, images: Iterable[ImageLike], promised: Promise | None = None) -> Iterator[Prediction]:
        """What the model says of many images, some at once; memory does not grow with their number."""
        waiting: list[Prepared] = []
        for image in images:
            waiting.append(self.prepare(image))
            if len(waiting) == self.batch_size:
                yield from self.predict_prepared(waiting, promised)
                waiting = []
        if waiting:
            yield from self.predict_prepared(waiting, promised)

    def prepare(self, image: ImageLike) -> Prepared:
        """An image as the backbones read it; one that cannot be used is an error that says why."""
        return prepare(image, self.sizes, self.card["pixel_range"], self.max_megapixels)

    def predict_prepared(self, prepared: Sequence[Prepared], promised: Promise | None = None) -> list[Prediction]:
        """What the model says of prepared images."""
        pixels = [torch.stack(own) for own in zip(*(each.pixels for each in prepared), strict=True)]
        return self.judge(self.features(pixels), [each.size for each in prepared], promised)

    @torch.inference_mode()
    def features(self, pixels: Sequence[Tensor]) -> FeatureRows:
        """The features of images, (n, 3, S, S) for each backbone, as they would be read from a store."""
        found: list[FeatureRows] = []
        place = np.arange(len(pixels[0]))
        for backbone, spec, images in zip(self._backbones, self._specs, pixels, strict=True):
            with autocast(self.device, spec["precision"]):
                pooled, maps = backbone.features(images.to(self.device), spec["statistics"])
            found.append(FeatureRows(pooled.cpu().numpy(), maps.cpu().numpy(), place, place))
        return replace(found[0], beside=tuple(found[1:]))

    @torch.inference_mode()
    def judge(
        self, rows: FeatureRows, sizes: Sequence[tuple[int, int]], promised: Promise | None = None
    ) -> list[Prediction]:
        """What the model says of images by their features.

        Args:
            rows: the features.
            sizes: width and height of each image.
            promised: other thresholds than those of the card.
        """
        found = self._detector.inspect(rows)
        limits = self.card["heat_map"]["low"], self.card["heat_map"]["high"]
        heat = scale(smooth_maps(found.positions.numpy()), *limits)
        z = self._detector.first.closed_form.standardiser.z_of(rows).cpu().numpy()
        scores = found.score.double().numpy()
        decisions, p = decide(scores, promised or self.promise), p_values(scores, self.normal_scores)
        return [
            Prediction(
                score=float(scores[i]),
                p_value=float(p[i]),
                decision=str(decisions[i]),
                mode=int(found.mode[i]),
                parts=dict(zip(PARTS, found.parts[i].tolist(), strict=True)),
                shares=dict(zip(PARTS, found.contributions[i].tolist(), strict=True)),
                heat_map=heat[i],
                regions=find_regions(heat[i], USUAL, size),
                size=size,
                z=z[i],
            )
            for i, size in enumerate(sizes)
        ]

    def overlay(self, image: ImageLike, prediction: Prediction) -> Image.Image:
        """The image with its heat map over it."""
        return overlay(read_image(image, self.card["pixel_range"], self.max_megapixels), prediction.heat_map)

    def explain(self, prediction: Prediction, nearest: int = NEAREST) -> tuple[list[Likeness], list[Likeness]]:
        """The nearest normals and the nearest known anomaly of the model's gallery, by the distance of z."""
        (found,) = self.explain_many([prediction], nearest)
        return found

    def explain_many(
        self, predictions: Sequence[Prediction], nearest: int = NEAREST
    ) -> list[tuple[list[Likeness], list[Likeness]]]:
        """``explain`` of some predictions at once."""
        known, z = self.model.gallery.z, np.stack([each.z for each in predictions])
        far = self._squares[:, None] - 2 * known @ z.T  # ‖g − z‖² but for ‖z‖²
        return [
            (
                self._nearest(self._normals, far[:, i], own, nearest),
                self._nearest(self._anomalies, far[:, i], own, 1),
            )
            for i, own in enumerate(z)
        ]

    def _nearest(self, places: np.ndarray, far: np.ndarray, z: np.ndarray, number: int) -> list[Likeness]:
        own = places[np.argsort(far[places], kind="stable")[:number]]
        distances = np.linalg.norm(self.model.gallery.z[own] - z, axis=1) / np.sqrt(len(z))
        return [self._likeness(place, one) for place, one in zip(own.tolist(), distances.tolist(), strict=True)]

    def _likeness(self, place: int, distance: float) -> Likeness:
        sample_id, defect_class, thumbnail = self._shown[place]
        return Likeness(sample_id, defect_class, thumbnail, distance)
