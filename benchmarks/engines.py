"""Which engine should run the feature network? Speed, and what becomes of the features: ``make benchmark-engines``.

ResNet-18 at 224 px with its real weights, batches of 32. The engines are measured in turns (see ``speed.py``); then
each of them extracts the features of ELPV, on which MPFM and Mahalanobis are fitted and tested.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from machine import as_table, describe, published, write_page
from torch import Tensor

from feature_networks import Engine, Networks, full_batches
from general_elpv import SEED, SIZE, WEIGHTS, Cell, fit, open_cell, read_parameters, take, training_data
from mpfm_kedro.atomic import first_line
from mpfm_kedro.backbones.backbone import Backbone
from mpfm_kedro.backbones.extraction import extract
from mpfm_kedro.backbones.weights import obtain_weights
from mpfm_kedro.detectors.base import Context
from mpfm_kedro.detectors.baselines.references import Mahalanobis
from mpfm_kedro.detectors.mpfm.detector import load
from mpfm_kedro.parameters import Parameters
from speed import medians

BATCH = 32
CALIBRATION = 128  # training normals that int8 is calibrated on
REFERENCE, DEFAULT = "torch eager, as published", "torch eager, folded batch norms (default)"
COMPILED = "torch.compile with freezing"  # an option already
WORTHWHILE = 1.5  # times as fast as the default, for another dependency
EXTRACTION = "extract() with the default engine"
ENGINES = {
    REFERENCE: Networks.eager_as_published,
    DEFAULT: Networks.eager,
    COMPILED: Networks.compiled,
    "onnxruntime fp32": Networks.onnx,
    "onnxruntime int8": Networks.onnx_int8,
    "OpenVINO fp32": Networks.openvino,
    "OpenVINO int8": Networks.openvino_int8,
}
COLUMNS = ["engine", "ms per image", "time ÷ fastest", "largest difference", "typical difference"]
AUC = ["AUC of MPFM", "AUC of Mahalanobis"]


@dataclass(frozen=True)
class Effect:
    """What an engine does to the features.

    Args:
        largest: difference of a pooled statistic from that of the reference, relative to its mean size over images.
        typical: the median of these differences.
        auc: of MPFM and of Mahalanobis on these features; empty if they were not fitted.
    """

    largest: float
    typical: float
    auc: tuple[float, ...] = ()


def build(networks: Networks) -> tuple[dict[str, Engine], dict[str, str]]:
    """The engines that can be had, and why the others cannot."""
    engines, missing = {}, {}
    for name, make in ENGINES.items():
        print(f"building {name}", flush=True)
        try:
            engines[name] = make(networks)
        except ImportError as error:
            missing[name] = f"not installed ({error.name})"
        except Exception as error:  # of a package or a compiler: the other engines can be measured
            missing[name] = f"failed: {first_line(error)}"
    return engines, missing


def measure_speed(
    engines: dict[str, Engine], backbone: Backbone, cell: Cell, images: Tensor, parameters: Parameters, repeats: int
) -> dict[str, float]:
    """Median seconds per image of each engine's bare loop, and of ``extract()`` from the files of the same images."""
    dataset = cell.dataset(slice(len(images)))

    def loop(engine: Engine) -> None:
        with torch.inference_mode():
            for batch in images.split(BATCH):
                engine(batch)

    def extraction() -> None:
        for _ in extract(backbone, dataset, parameters.features, torch.device("cpu")):
            pass

    work = {name: lambda engine=engine: loop(engine) for name, engine in engines.items()}
    seconds = medians(repeats, **work, **{EXTRACTION: extraction})
    return {name: value / len(images) for name, value in seconds.items()}


def features(
    engine: Engine, backbone: Backbone, images: Tensor, statistics: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Pooled statistics and maps of all images, by one engine."""
    pooled, maps = [], []
    with torch.inference_mode():
        for place, batch in full_batches(images, BATCH):
            found = backbone.gather(engine(batch), statistics)
            for kept, own in zip((pooled, maps), found, strict=True):
                kept.append(own[: place.stop - place.start].numpy())
    return np.concatenate(pooled), np.concatenate(maps)


def difference(pooled: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """The largest and the median |a − b| of statistics (n, d), relative to the mean of |b| over the images."""
    size = np.abs(reference).mean(0)
    relative = np.abs(pooled - reference)[:, size > 0] / size[size > 0]
    return float(relative.max()), float(np.median(relative))


def fitted_auc(pooled: np.ndarray, maps: np.ndarray, cell: Cell, parameters: Parameters) -> tuple[float, ...]:
    """AUC of MPFM and of Mahalanobis."""
    normals, anomalies, tested = (take(pooled, maps, rows) for rows in (cell.normals, cell.anomalies, cell.tested))
    data = training_data(normals, anomalies, len(cell.run["known_anomalies"]))
    mpfm = load(fit(parameters, data), torch.device("cpu"))
    detectors = mpfm, Mahalanobis().fit(data, SEED, Context())
    return tuple(cell.auc(detector.score_samples(tested).score) for detector in detectors)


def measure_effects(
    engines: dict[str, Engine], backbone: Backbone, cell: Cell, images: Tensor, parameters: Parameters, fitted: bool
) -> dict[str, Effect]:
    """The effect of each engine; the reference is the first of them."""
    effects, reference = {}, None
    for name, engine in engines.items():
        print(f"features by {name}", flush=True)
        pooled, maps = features(engine, backbone, images, parameters.features.statistics)
        reference = pooled if reference is None else reference
        auc = fitted_auc(pooled, maps, cell, parameters) if fitted else ()
        effects[name] = Effect(*difference(pooled, reference), auc)
    return effects


def rows(seconds: dict[str, float], effects: dict[str, Effect], missing: dict[str, str]) -> list[list[str]]:
    """The table, in the order of ENGINES."""
    fastest = min(seconds[name] for name in effects)
    found = []
    for name in ENGINES:
        if name in missing:
            found.append([name, missing[name]])
            continue
        own, time = effects[name], seconds[name]
        changes = [f"{own.largest:.1e}", f"{own.typical:.1e}", *(f"{value:.4f}" for value in own.auc)]
        found.append([name, f"{1e3 * time:.1f}", f"{time / fastest:.2f}", *changes])
    width = max(map(len, found))
    return [row + [""] * (width - len(row)) for row in found]


def describe_extraction(seconds: dict[str, float]) -> str:
    """How much of the bare loops' speed remains from files to statistics."""
    own = seconds[EXTRACTION]
    bare = {name: value for name, value in seconds.items() if name != EXTRACTION}
    fastest = min(bare, key=bare.__getitem__)
    return (
        f"`extract()` (from files, with decoding and statistics) takes {1e3 * own:.1f} ms per image: it has "
        f"{bare[DEFAULT] / own:.2f} of the speed of the default engine's bare loop, and {bare[fastest] / own:.2f} of "
        f"that of the fastest engine ({fastest})."
    )


def describe_auc(cell: Cell) -> str:
    """What the AUC is measured on."""
    return (
        f"AUC: ELPV, general setting, seed {SEED} (of development), {len(cell.run['train_normals']):,} normals and "
        f"{len(cell.run['known_anomalies'])} known anomalies, all features by the engine of the row."
    )


def conclude(seconds: dict[str, float], effects: dict[str, Effect]) -> str:
    """What follows for the default, in one sentence."""
    gain = {name: seconds[DEFAULT] / seconds[name] for name in effects}
    exact = max((name for name in gain if "int8" not in name), key=gain.__getitem__)
    fastest = max(gain, key=gain.__getitem__)
    if exact == DEFAULT:
        sentence = "The default stays: no other engine in fp32 is faster"
    elif gain[exact] < WORTHWHILE:
        sentence = f"The default stays: {exact} is only {gain[exact]:.2f} times as fast"
    else:
        advice = "an option already (`features.compile`)" if exact == COMPILED else "worth an option beside it"
        sentence = f"{exact} is {gain[exact]:.2f} times as fast as the default, and {advice}"
    if fastest != exact:
        sentence += f"; {fastest} is {gain[fastest]:.2f} times as fast with other features"
        if effects[fastest].auc:
            change = effects[fastest].auc[0] - effects[DEFAULT].auc[0]
            sentence += f" (AUC of MPFM {change:+.4f})"
            sentence += ", a loss that a default should not have" * (round(change, 4) < 0)
    return sentence + "."


def main() -> None:
    """Measure all engines, print and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=256, help="of the bare loops, in full batches of 32")
    parser.add_argument("--samples", type=int, default=0, help="of ELPV, for a quick try; 0: all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-auc", action="store_true", help="fit nothing: speed and differences only")
    parser.add_argument("--output", type=Path, help="file of the page; docs/results/engines.md if all is as by default")
    given = parser.parse_args()
    parameters = read_parameters()
    cell, threads = open_cell(parameters, given.samples), torch.get_num_threads()
    dataset = cell.dataset()
    images = torch.stack([dataset[i][1] for i in range(len(dataset))])
    weights = obtain_weights("resnet18", WEIGHTS)
    with tempfile.TemporaryDirectory() as folder:
        networks = Networks(weights, images[cell.normals[:CALIBRATION]], Path(folder), threads)
        engines, missing = build(networks)
        timed = images[: max(1, min(given.images, len(images)) // BATCH) * BATCH]
        seconds = measure_speed(engines, networks.backbone, cell, timed, parameters, given.repeats)
        effects = measure_effects(engines, networks.backbone, cell, images, parameters, not given.no_auc)
    write_page(
        given.output or published(parser, given, "engines.md", "images", "samples", "repeats", "no_auc"),
        "# Engines for the feature network",
        f"`make benchmark-engines`, {describe('torch', 'onnxruntime', 'openvino', 'nncf')}",
        f"ResNet-18 with ImageNet weights, {SIZE} px, from bytes to the maps of layer2, layer3 and layer4. Speed: the "
        f"bare loop over {len(timed)} images in memory, in batches of {BATCH} one after the other, {threads} threads, "
        f"median of {given.repeats} turns. Effect: pooled statistics of {len(images):,} images, their difference from "
        f"*{REFERENCE}* relative to the statistic's mean size. int8 is calibrated on {len(networks.calibration)} "
        "training normals.",
        "" if given.no_auc else describe_auc(cell),
        as_table(COLUMNS + ([] if given.no_auc else AUC), rows(seconds, effects, missing)),
        describe_extraction(seconds),
        conclude(seconds, effects),
    )


if __name__ == "__main__":
    main()
