"""Export: a production model as one ONNX file, from pixels to score and heat map, for use without torch.

    model.onnx  pixels: bytes (batch, height, width, 3), RGB of any size
                → score (batch,), heat_map (batch, h, w), parts (batch, 4), mode (batch,), likeness (batch,)
    card.json   the card of the model, with its thresholds

The file is compared with the inspector over real images. Where a decision would be another one, nothing is written.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter1d
from torch import Tensor, nn

from mpfm_kedro.atomic import replacing_folder
from mpfm_kedro.backbones.networks import build_backbone
from mpfm_kedro.detectors.mpfm.detector import load
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.position_maps import FINER, SIGMA, resize
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.likeness import likeness
from mpfm_kedro.inspection.model import Model, file_digest, model_digest, write_card
from mpfm_kedro.inspection.resizing import resize_bytes
from mpfm_kedro.inspection.thresholds import decide

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

NETWORK = "model.onnx"
PIXELS = "pixels"
OPSET = 18
NEEDED = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Parity:
    """How an exported network differs from the inspector."""

    images: int  # number of compared images
    score: float  # the largest difference of a score
    heat_map: float  # the largest difference of a value of a heat map
    margin: float  # the least distance of a score from a threshold
    flips: tuple[str, ...]  # images with another decision


class Outputs(NamedTuple):
    """What the exported network returns for B images.

    S (B,), heat map 0..1 (B, h, w), S_g … S_n (B, 4), mode (B,), likeness to a known defect (B,).
    """

    score: Tensor
    heat_map: Tensor
    parts: Tensor
    mode: Tensor
    likeness: Tensor


class ExportedModel(nn.Module):
    """A production model from pixels to score and heat map: resizing, backbones, the detector itself, smoothing.

    Networks of half precision compute in single precision here.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.specs = model.card["backbones"]
        self.backbones = nn.ModuleList(
            build_backbone(spec["backbone"], weights, spec["layers"], spec["map_layers"])
            for spec, weights in zip(self.specs, model.backbones, strict=True)
        )
        self.detector = load(model.detector, torch.device("cpu"))
        self.low, self.high = model.card["heat_map"]["low"], model.card["heat_map"]["high"]
        height, width = (_smoothing(side) for side in self.specs[0]["map_shape"][1:])
        self.height, self.width = nn.Buffer(height), nn.Buffer(width.T.contiguous())
        z, known = torch.from_numpy(model.gallery.z), torch.from_numpy(model.gallery.is_known)
        self.normals, self.known = nn.Buffer(z[~known]), nn.Buffer(z[known])
        self.requires_grad_(False).eval()

    def forward(self, pixels: Tensor) -> Outputs:
        """Bytes (B, H, W, 3) of any size → scores and heat map."""
        features = [
            backbone.features(resize_bytes(pixels, spec["image_size"]), spec["statistics"])  # type: ignore[operator]
            for backbone, spec in zip(self.backbones, self.specs, strict=True)
        ]
        found = self.detector(features)
        smooth = self.height @ (found.positions @ self.width)
        heat_map = ((smooth - self.low) / (self.high - self.low)).clamp(0, 1)
        z = self.detector.first.standardiser.z(features[0][0])
        return Outputs(found.score, heat_map, found.parts, found.mode, likeness(z, self.normals, self.known))


def _smoothing(n: int) -> Tensor:
    """One axis of ``smooth_maps`` as a matrix (4 n, n)."""
    finer = resize(np.eye(n), (n, FINER * n))
    return torch.from_numpy(gaussian_filter1d(finer, FINER * SIGMA, axis=0, mode="nearest")).float()


def export_model(model: Model, images: Iterable[tuple[str, Image.Image]], folder: Path) -> Parity:
    """Replace a folder by the network and the card of a model, compared on images (RGB) with their names.

    Where a package is missing or a decision differs, the folder stays as it was.
    """
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise InputError(
            f"Export needs the packages {', '.join(missing)}: pip install -c constraints.txt -e '.[export]'"
        )
    if model.card["keep_proportions"]:
        raise InputError(
            "Export is not possible for a model with features.keep_proportions = true: the exported network squeezes "
            "images to squares; fit one with features.keep_proportions=false"
        )
    with replacing_folder(folder) as partial:
        write_network(ExportedModel(model), partial / NETWORK, model_digest(model.card))
        parity = measure_parity(Inspector(model, "cpu"), open_network(partial / NETWORK), images)
        if parity.flips:
            raise InputError(f"The export is refused: {describe(parity)}")
        export = {"file": NETWORK, "sha256": file_digest(partial / NETWORK), "parity": asdict(parity)}
        write_card(model.card | {"export": export}, partial)
    return parity


def write_network(network: ExportedModel, file: Path, digest: str) -> None:
    """Write a network as ONNX; batch and size of the images stay open."""
    dynamic = torch.export.Dim.DYNAMIC
    example = torch.zeros(2, 37, 41, 3, dtype=torch.uint8)
    with warnings.catch_warnings(), torch.inference_mode(False):
        warnings.simplefilter("ignore")  # of torch about its own future
        shapes = ({0: dynamic, 1: dynamic, 2: dynamic},)
        graph = torch.export.export(network, (example,), dynamic_shapes=shapes, strict=True)
        program = torch.onnx.export(
            graph, opset_version=OPSET, input_names=[PIXELS], output_names=Outputs._fields, verbose=False
        )
    assert program is not None
    program.model.metadata_props["model"] = digest
    program.save(file, external_data=False)


def open_network(file: Path, threads: int = 0) -> InferenceSession:
    """The network of a file on a number of CPU threads; 0 for all."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def run_network(network: InferenceSession, pixels: np.ndarray) -> list[np.ndarray]:
    """Scores (B,), heat maps (B, h, w) and likeness (B,) of bytes (B, H, W, 3)."""
    return network.run(["score", "heat_map", "likeness"], {PIXELS: pixels})


def measure_parity(
    inspector: Inspector, network: InferenceSession, images: Iterable[tuple[str, Image.Image]]
) -> Parity:
    """Compare a network with the inspector, image by image."""
    threshold = inspector.threshold
    limits = [limit for limit in (threshold.defective, threshold.good) if limit is not None]
    scores, heat_maps, margins, flips = [], [], [], []
    for name, image in images:
        (score,), (heat_map,), (alike,) = run_network(network, np.asarray(image)[None])
        expected = inspector.predict(image)
        scores.append(abs(float(score) - expected.score))
        heat_maps.append(float(np.abs(heat_map - expected.heat_map).max()))
        margins.append(min(abs(expected.score - limit) for limit in limits))
        if decide(score, threshold, alike) != expected.decision:
            flips.append(name)
    return Parity(len(scores), max(scores), max(heat_maps), min(margins), tuple(flips))


def describe(parity: Parity) -> str:
    """The comparison, in sentences for people."""
    shown = ", ".join(parity.flips[:5]) + (" …" if len(parity.flips) > 5 else "")
    flips = f"{len(parity.flips)} decisions differ ({shown})" if parity.flips else "no decision differs"
    return (
        f"torch and onnxruntime were compared on {parity.images} images: {flips}. The largest difference of a score is "
        f"{parity.score:.1e}, the score nearest to a threshold is {parity.margin:.1e} from it; the largest difference "
        f"of a heat map (0 to 1) is {parity.heat_map:.1e}."
    )
