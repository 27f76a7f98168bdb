"""A production model at work: from an image to a score, a decision, and where the defect is.

    inspector = Inspector.load("data/06_models/elpv/production")
    prediction = inspector.predict("new.png")
    prediction.decision, prediction.score, prediction.regions

No Kedro is needed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mpfm_kedro.backbones.building import build_backbone
from mpfm_kedro.backbones.extraction import Backbone, autocast, images_per_batch, to_pixels
from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.mpfm.calibration import PARTS, SIGNS
from mpfm_kedro.detectors.mpfm.detector import FittedMPFM, load
from mpfm_kedro.errors import InputError
from mpfm_kedro.files import first_line
from mpfm_kedro.images.decoding import Pixels, UnusableImageError, decode, to_rgb
from mpfm_kedro.images.position_maps import smooth_maps
from mpfm_kedro.inspection.heat_maps import USUAL, Region, find_regions, overlay, scale
from mpfm_kedro.inspection.model import Model, load_model
from mpfm_kedro.inspection.thresholds import Promise, decide, item_scores, p_values, promise
from mpfm_kedro.parallel import torch_device

MAX_PIXELS = 100_000_000
BATCH = 32
NEAREST = 4

ImageLike = str | Path | np.ndarray | Image.Image


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image.

    Args:
        score: higher for anomalies; the thresholds are on its scale.
        p_value: share of unseen normals that score as high.
        decision: good, uncertain or defective.
        mode: the group of normals that the image is likest.
        parts: S_g, S_a, S_r, S_n.
        shares: what each of them adds to the score.
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


@dataclass(frozen=True)
class Prepared:
    """An image as the backbones read it: (3, S, S) of bytes for each of them, and the size it had."""

    pixels: tuple[Tensor, ...]
    size: tuple[int, int]


class Inspector:
    """A model that is ready to inspect images.

    Args:
        model: of a model folder.
        device: auto, cpu or cuda.
    """

    def __init__(self, model: Model, device: str = "auto") -> None:
        self.model = model
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
        self._normal = np.array([defect_class == "" for _, defect_class, _ in self._shown], dtype=bool)
        self.normal_scores = item_scores(model.calibration.normal_scores, model.calibration.normal_items)
        stated = self.card["promise"]
        self.promise = self.promised(stated["rate"], stated["confidence"])

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> Inspector:
        """The inspector of a model folder, whose files are checked first."""
        model = load_model(Path(folder))
        try:
            return cls(model, device)
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
        return prepare(image, self.sizes, self.card["pixel_range"])

    @torch.inference_mode()
    def predict_prepared(self, prepared: Sequence[Prepared], promised: Promise | None = None) -> list[Prediction]:
        """What the model says of prepared images."""
        rows = self._rows(prepared)
        scores, positions = self._detector.inspect(rows)
        assert scores.parts is not None and scores.mode is not None
        heat = scale(smooth_maps(positions), self.card["heat_map"]["low"], self.card["heat_map"]["high"])
        first = self._first
        shares = first.calibration.standardise(scores.parts, scores.mode) * (SIGNS * first.calibration.weight)
        z = first.closed_form.standardiser.z(rows)
        decisions = decide(scores.score, promised or self.promise)
        p = p_values(scores.score, self.normal_scores)
        return [
            Prediction(
                score=float(scores.score[i]),
                p_value=float(p[i]),
                decision=str(decisions[i]),
                mode=int(scores.mode[i]),
                parts=dict(zip(PARTS, scores.parts[i].tolist(), strict=True)),
                shares=dict(zip(PARTS, shares[i].tolist(), strict=True)),
                heat_map=heat[i],
                regions=find_regions(heat[i], USUAL, own.size),
                size=own.size,
                z=z[i],
            )
            for i, own in enumerate(prepared)
        ]

    def overlay(self, image: ImageLike, prediction: Prediction) -> Image.Image:
        """The image with its heat map over it."""
        return overlay(read_image(image, self.card["pixel_range"]), prediction.heat_map)

    def explain(self, prediction: Prediction, nearest: int = NEAREST) -> tuple[list[Likeness], list[Likeness]]:
        """The nearest normals and the nearest known anomaly of the model's gallery, by the distance of z."""
        z = self.model.gallery.z
        order = np.argsort(self._squares - 2 * z @ prediction.z, kind="stable")  # ‖g − z‖² but for ‖z‖²
        found = []
        for own, number in ((order[self._normal[order]], nearest), (order[~self._normal[order]], 1)):
            distance = np.linalg.norm(z[own[:number]] - prediction.z, axis=1) / np.sqrt(z.shape[1])
            pairs = zip(own[:number].tolist(), distance.tolist(), strict=True)
            found.append([self._likeness(place, far) for place, far in pairs])
        return found[0], found[1]

    def _likeness(self, place: int, distance: float) -> Likeness:
        sample_id, defect_class, thumbnail = self._shown[place]
        return Likeness(sample_id, defect_class, thumbnail, distance)

    @property
    def _first(self) -> FittedMPFM:
        return self._detector if isinstance(self._detector, FittedMPFM) else self._detector.detectors[0]

    def _rows(self, prepared: Sequence[Prepared]) -> FeatureRows:
        """The features of images in all backbones, as they would be read from a store."""
        found: list[FeatureRows] = []
        place = np.arange(len(prepared))
        for number, (backbone, spec) in enumerate(zip(self._backbones, self._specs, strict=True)):
            images = torch.stack([own.pixels[number] for own in prepared]).to(self.device)
            with autocast(self.device, spec["precision"]):
                pooled, maps = backbone.features(images, spec["statistics"])
            found.append(FeatureRows(pooled.cpu().numpy(), maps.cpu().numpy(), place, place))
        return replace(found[0], beside=tuple(found[1:]))


def prepare(image: ImageLike, sizes: Sequence[int], pixel_range: str) -> Prepared:
    """An image as the backbones read it, resized as in training."""
    rgb = read_image(image, pixel_range)
    return Prepared(tuple(to_pixels(rgb, size) for size in sizes), rgb.size)


def read_image(image: ImageLike, pixel_range: str) -> Image.Image:
    """RGB of whatever is given; bit depth and range are those of the images that the model has learned from."""
    try:
        if isinstance(image, str | Path):
            return decode(str(image), Path(image).read_bytes(), MAX_PIXELS, pixel_range=pixel_range)
        return to_rgb(_from_array(image) if isinstance(image, np.ndarray) else image, pixel_range)
    except Exception as error:  # parsers of damaged files let any error through
        name = str(image) if isinstance(image, str | Path) else "The image"
        problem = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"{name} cannot be used: {problem}") from error


def _from_array(array: np.ndarray) -> Pixels:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)) or 0 in array.shape:
        raise UnusableImageError(f"an array of shape {array.shape}; an image is (height, width) or (height, width, 3)")
    if array.dtype == np.uint8:
        return Image.fromarray(array)
    if array.dtype.kind not in "uif":
        raise UnusableImageError(f"values of {array.dtype}; they must be integers or floating point")
    return array[..., :3] if array.ndim == 3 else array
