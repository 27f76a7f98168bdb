"""MPFM and anomalib's PatchCore, PaDiM and DFM, from image files to scores: ``make benchmark-peers`` prints the page.

The same images, the same weights of ResNet-18, the same machine. Each method runs in a process of its own. EfficientAD
is left out, because anomalib downloads its teacher and the images of ImageNette.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from general_elpv import KNOWN, SEED, SIZE, WEIGHTS, Cell, fit, open_cell, read_parameters, take, training_data
from mpfm_kedro.backbones.backbone import Backbone
from mpfm_kedro.backbones.extraction import extract
from mpfm_kedro.backbones.weights import obtain_weights
from mpfm_kedro.detectors.mpfm.detector import load
from mpfm_kedro.evaluation.measures import measures
from mpfm_kedro.parameters import Parameters
from mpfm_kedro.provenance import code_revision

OURS, UNTRAINED = f"MPFM, {KNOWN} known anomalies", "MPFM, no anomaly known"
PEERS = ("PatchCore", "PaDiM", "DFM")
HEAD = """\
# MPFM and anomalib

`make benchmark-peers`, {date}, revision {revision}, {cores} cores, torch {torch}, anomalib {anomalib}.

ELPV at {size} px, general setting, development seed {seed}: {normals:,} normals to learn from, {tested:,} images to
score. All methods read the same files by the same code, with one process that decodes, and use ResNet-18 with the same
ImageNet weights. The peers are the torch classes of anomalib with its default layers, without its Lightning engine.
They learn from normals alone; PatchCore remembers {ratio:.2%} of its patches. Seconds are from files to a fitted model
and from files to scores, without imports. Memory is the largest resident size of the process.

| method | fit, seconds | predict, ms per image | peak memory, GB | AUC | recall at 1 % false alarms |
|---|---|---|---|---|---|"""


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
        normals, anomalies = (take(pooled, maps, part) for part in np.split(rows, [len(cell.normals)]))
        data = training_data(normals, anomalies, len(cell.run["known_anomalies"]))
        self.detector = load(fit(self.parameters, data, self.known), torch.device("cpu"))

    def scores(self, cell: Cell) -> np.ndarray:
        """Of the test set."""
        pooled, maps = self._features(cell, cell.tested)
        return self.detector.score_samples(take(pooled, maps, np.arange(len(pooled)))).score

    def _features(self, cell: Cell, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        batches = list(extract(self.backbone, cell.dataset(positions), self.parameters.features, torch.device("cpu")))
        return tuple(np.concatenate([getattr(batch, name) for batch in batches]) for name in ("pooled", "maps"))


def measure(name: str, n_images: int, ratio: float) -> dict[str, float]:
    """Fit and predict with one method in this process."""
    torch.manual_seed(SEED)
    parameters = read_parameters()
    cell, weights = open_cell(parameters, n_images), obtain_weights("resnet18", WEIGHTS)
    method: Any
    if name in PEERS:
        from anomalib_models import Anomalib

        method = Anomalib(name, weights, ratio, parameters.features.workers)
    else:
        method = Mpfm(parameters, weights, name == OURS)
    start = time.perf_counter()
    method.fit(cell)
    fitted = time.perf_counter()
    scores = method.scores(cell)
    predicted = time.perf_counter()
    return {
        "fit": fitted - start,
        "predict": 1e3 * (predicted - fitted) / len(cell.tested),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        **measures(cell.table(scores)),
    }


def main() -> None:
    """Measure all methods and print the page; or measure one and print its numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=0, help="of ELPV, for a quick try; 0: all")
    parser.add_argument("--coreset-ratio", type=float, default=0.001, help="of the patches that PatchCore remembers")
    parser.add_argument("--methods", nargs="+", default=[OURS, UNTRAINED, *PEERS])
    parser.add_argument("--one", action="store_true", help="measure the one method in this process")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.methods[0], given.images, given.coreset_ratio)))
        return
    run = open_cell(read_parameters(), given.images).run
    about = {"date": date.today(), "revision": code_revision(), "cores": len(os.sched_getaffinity(0))}
    about |= {
        name: version(name) if name == "torch" or {*given.methods} & {*PEERS} else "" for name in ("torch", "anomalib")
    }
    about |= {"size": SIZE, "seed": SEED, "ratio": given.coreset_ratio, "normals": len(run["train_normals"])}
    print(HEAD.format(**about, tested=len(run["test_normals"]) + len(run["test_anomalies"])))
    for name in given.methods:
        options = ["--images", str(given.images), "--coreset-ratio", str(given.coreset_ratio)]
        command = [sys.executable, __file__, "--one", *options, "--methods", name]
        shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found = json.loads(shown.splitlines()[-1])
        numbers = f"{found['fit']:.1f} | {found['predict']:.1f} | {found['memory']:.1f}"
        print(f"| {name} | {numbers} | {found['auc']:.3f} | {found['recall_1']:.3f} |", flush=True)


if __name__ == "__main__":
    main()
