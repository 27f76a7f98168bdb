"""MPFM beside anomalib's PatchCore, PaDiM and DFM, from image files to scores: ``make benchmark-peers``.

The same images, the same weights of ResNet-18, the same machine. Each method runs in a process of its own, whose peak
memory is measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from general_elpv import KNOWN, SEED, SIZE, WEIGHTS, Cell, fit, open_cell, read_parameters, take, training_data
from machine import as_table, describe, installed_version, published, write_page
from mpfm_kedro.backbones.backbone import Backbone
from mpfm_kedro.backbones.extraction import extract
from mpfm_kedro.backbones.weights import obtain_weights
from mpfm_kedro.detectors.mpfm.detector import load
from mpfm_kedro.parameters import Parameters
from stage_costs import SECONDS_BETWEEN_SAMPLES, watched

OURS, UNTRAINED = f"MPFM, {KNOWN} known anomalies", "MPFM, no anomaly known"
PEERS = ("PatchCore", "PaDiM", "DFM")
COLUMNS = ["method", "fit, seconds", "predict, ms per image", "peak memory, GB", "AUC"]
DEFAULT_RATIO = 0.1  # of PatchCore's coreset in anomalib
NOT_TRIED = (
    "EfficientAD is not in the table: its teacher's weights and the images of ImageNette that it also learns from are "
    "downloads that anomalib makes itself, and this page is made without them."
)


class Mpfm:
    """MPFM from images to scores."""

    def __init__(self, parameters: Parameters, weights: dict[str, torch.Tensor], known: bool) -> None:
        self.parameters, self.known = parameters, known
        self.backbone = Backbone("resnet18", weights, ["auto"], ["auto"])

    def fit(self, cell: Cell) -> None:
        """Features of what it learns from, then all stages."""
        learned = np.concatenate([cell.normals, cell.anomalies]) if self.known else cell.normals
        pooled, maps = self._features(cell, learned)
        rows = np.arange(len(learned))
        normals, anomalies = (take(pooled, maps, own) for own in np.split(rows, [len(cell.normals)]))
        data = training_data(normals, anomalies, len(cell.run["known_anomalies"]))
        self.detector = load(fit(self.parameters, data, self.known), torch.device("cpu"))

    def scores(self, cell: Cell) -> np.ndarray:
        """Of the test set."""
        pooled, maps = self._features(cell, cell.tested)
        return self.detector.score_samples(take(pooled, maps, np.arange(len(pooled)))).score

    def _features(self, cell: Cell, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = list(extract(self.backbone, cell.dataset(positions), self.parameters.features, torch.device("cpu")))
        return tuple(np.concatenate([getattr(batch, name) for batch in found]) for name in ("pooled", "maps"))


class Peer:
    """A model of anomalib from images to scores; it learns from normals alone."""

    def __init__(self, name: str, parameters: Parameters, weights: dict[str, torch.Tensor], ratio: float) -> None:
        from anomalib_models import Anomalib

        self.model = Anomalib(name, weights, ratio, parameters.features.workers)

    def fit(self, cell: Cell) -> None:
        """On the training normals."""
        self.model.fit(cell.dataset(cell.normals))

    def scores(self, cell: Cell) -> np.ndarray:
        """Of the test set."""
        return self.model.scores(cell.dataset(cell.tested))


def measure(name: str, n_images: int, ratio: float) -> dict[str, float]:
    """Fit and predict with one method in this process."""
    torch.manual_seed(SEED)
    parameters = read_parameters()
    cell, weights = open_cell(parameters, n_images), obtain_weights("resnet18", WEIGHTS)
    ours = name in (OURS, UNTRAINED)
    method: Any = Mpfm(parameters, weights, name == OURS) if ours else Peer(name, parameters, weights, ratio)
    start = time.perf_counter()
    method.fit(cell)
    fitted = time.perf_counter()
    scores = method.scores(cell)
    predicted = time.perf_counter()
    return {
        "fit": fitted - start,
        "predict": (predicted - fitted) / len(cell.tested),
        "auc": cell.auc(scores),
        "last_step": 0.0 if ours else method.model.last_step,
    }


def measure_apart(name: str, given: argparse.Namespace) -> dict[str, float] | str:
    """The numbers of one method from a process of its own, or the last line of what went wrong."""
    options = ["--images", str(given.images), "--coreset-ratio", str(given.coreset_ratio)]
    command = [sys.executable, __file__, "--method", name, *options]
    print(f"{name} …", flush=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with watched(process) as samples:
        output, errors = process.communicate()
    if process.returncode:
        return (errors.strip().splitlines() or [f"ended with {process.returncode}"])[-1]
    return json.loads(output.splitlines()[-1]) | {"memory": max(sample.memory for sample in samples)}


def row(name: str, found: dict[str, float] | str) -> list[str]:
    """A line of the table."""
    if isinstance(found, str):
        return [name, f"failed: {found}", "", "", ""]
    memory = f"{found['memory'] / 1e9:.1f}"
    return [name, f"{found['fit']:.1f}", f"{1e3 * found['predict']:.1f}", memory, f"{found['auc']:.3f}"]


def describe_coreset(found: dict[str, float] | str, normals: int, ratio: float) -> str:
    """How much PatchCore remembers, and how long its default would take: each greedy step reads all patches.

    Nothing is said of a PatchCore that failed.
    """
    if isinstance(found, str):
        return ""
    patches = normals * (SIZE // 8) ** 2  # of layer2
    text = f"PatchCore remembers {ratio:.2%} of its {patches:,} patches."
    if ratio >= DEFAULT_RATIO:
        return text
    hours = found["last_step"] * DEFAULT_RATIO / ratio / 3600
    return (
        f"{text} To choose them took {found['last_step']:.0f} s; the default of {DEFAULT_RATIO:.0%} takes "
        f"{DEFAULT_RATIO / ratio:.0f} times as many steps of the same cost, about {hours:.1f} hours."
    )


def main() -> None:
    """Measure all methods, print and write the page; or measure one and print its numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=0, help="of ELPV, for a quick try; 0: all")
    parser.add_argument("--coreset-ratio", type=float, default=0.001, help="of the patches that PatchCore remembers")
    parser.add_argument("--method", help="measure this one in this process")
    parser.add_argument("--output", type=Path, help="file of the page; docs/results/peers.md if all is as by default")
    given = parser.parse_args()
    if given.method:
        print(json.dumps(measure(given.method, given.images, given.coreset_ratio)))
        return
    found = {name: measure_apart(name, given) for name in (OURS, UNTRAINED, *PEERS)}
    run = open_cell(read_parameters(), given.images).run
    normals, tested = len(run["train_normals"]), len(run["test_normals"]) + len(run["test_anomalies"])
    write_page(
        given.output or published(parser, given, "peers.md", "images", "coreset_ratio"),
        "# MPFM beside anomalib",
        f"`make benchmark-peers`, {describe('torch', 'torchvision', 'timm', 'anomalib')}",
        f"ELPV at {SIZE} px, general setting, seed {SEED} (of development): {normals:,} normals to learn from, "
        f"{tested:,} images to score. Both sides read the same files by the same code, with one process that decodes, "
        "and use ResNet-18 with the same verified ImageNet weights. The peers are the torch classes of anomalib "
        f"{installed_version('anomalib')} with its default layers, without its Lightning engine; they learn from "
        "normals alone. Seconds are from files to a fitted model and from files to scores, without imports. Memory is "
        "the peak of the process and its children together, which count what they share once, without files that are "
        f"mapped into them; it is looked at every {SECONDS_BETWEEN_SAMPLES} s.",
        as_table(COLUMNS, [row(name, own) for name, own in found.items()]),
        describe_coreset(found["PatchCore"], normals, given.coreset_ratio),
        NOT_TRIED,
    )


if __name__ == "__main__":
    main()
