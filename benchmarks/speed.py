"""Speed as ratios from one run: ``make benchmark``.

Machines are noisy, ratios less so: what is compared is measured in turns, and the medians are divided.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor, nn
from torchvision.models import resnet18

from general_elpv import fit, read_parameters
from mpfm_kedro.backbones.backbone import Backbone
from mpfm_kedro.backbones.extraction import ViewImages, extract
from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm.detector import load
from mpfm_kedro.detectors.mpfm.specification import prototype_parameters, training_parameters
from mpfm_kedro.detectors.mpfm.stages import fit_modules, fit_prototypes
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.parameters import FeatureParameters
from mpfm_kedro.sources import elpv

STATISTICS = ["mean", "max", "std"]
PARAMETERS = read_parameters()


def processor_seconds() -> float:
    """Processor time of this process and of those that it started and that have ended; other work hardly changes it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(own.ru_utime + own.ru_stime for own in used)


def medians(
    repeats: int, clock: Callable[[], float] = time.perf_counter, **work: Callable[[], object]
) -> dict[str, float]:
    """Median seconds of each piece of work, done in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name, function in work.items():
            start = clock()
            function()
            if turn:  # the first turn warms up
                seconds[name].append(clock() - start)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def extraction(backbone: Backbone, size: int, n: int, compiled: bool) -> float:
    """Throughput of extraction from files ÷ that of a bare eager forward loop over images in memory."""
    folder = elpv.SOURCE.locate(Path("data/01_raw"))
    listed = elpv.SOURCE.list_samples(folder).head(n).assign(view="original", content_hash="")
    images = ImageLoader("elpv", folder, int(1e8), Path("unused"))
    dataset = ViewImages(listed, images.read, size)
    batches = torch.stack([dataset[i][1] for i in range(n)]).split(32)
    bare = resnet18().eval().to(memory_format=torch.channels_last)
    values = yaml.safe_load(Path("conf/base/parameters_features.yml").read_text())["features"]
    parameters = FeatureParameters(**(values | {"statistics": STATISTICS, "compile": compiled}))

    def forward_loop() -> None:
        with torch.inference_mode():
            for batch in batches:
                bare(batch.float().contiguous(memory_format=torch.channels_last))

    def ours() -> None:
        for _ in extract(backbone, dataset, parameters, torch.device("cpu")):
            pass

    seconds = medians(3, bare=forward_loop, ours=ours)
    return seconds["bare"] / seconds["ours"]


def synthetic_rows(n: int, d: int, channels: int, side: int, seed: int) -> FeatureRows:
    """Features of the sizes of a real dataset, in two modes."""
    rng = np.random.default_rng(seed)
    pooled = rng.normal(size=(n, d)) + 3 * (np.arange(n) % 2)[:, None]
    maps = rng.normal(size=(n, channels, side, side)).astype(np.float16)
    return FeatureRows(pooled.astype(np.float32), maps, np.arange(n), np.arange(n))


def synthetic_data(side: int, n: int = 900) -> TrainingData:
    """As many normals as a real dataset has, and ten known anomalies in four views."""
    normals, anomalies = (synthetic_rows(k, 2304, 384, side, k) for k in (n, 40))
    return TrainingData(normals, normals.take(np.arange(0)), replace(anomalies, source=np.arange(40) % 10))


def fit_shortly(data: TrainingData) -> dict[str, Artefact]:
    """All fits of MPFM by default, after few steps of training."""
    return fit(PARAMETERS, data, epochs=1, iterations_per_epoch=50)


def training_step(size: int) -> float:
    """The published step (backbone forward on a batch of 48, then its heads) ÷ our step, of all rounds at once."""
    images = torch.randn(48, 3, size, size).contiguous(memory_format=torch.channels_last)
    network = nn.Sequential(*list(resnet18().eval().to(memory_format=torch.channels_last).children())[:-2])
    local, linear = nn.Conv2d(512, 1, 1), nn.Linear(512, 1)
    target = torch.tensor([0.0] * 16 + [1.0] * 32)
    heads = torch.optim.AdamW([*local.parameters(), *linear.parameters()])

    def published() -> None:
        with torch.no_grad():
            maps: Tensor = network(images)
        positions = local(maps).flatten(1)
        top = positions.topk(max(1, positions.shape[1] // 10), dim=1).values.mean(1)
        heads.zero_grad()
        score = top - linear(maps.mean((2, 3)))[:, 0]
        nn.functional.binary_cross_entropy_with_logits(score, target).backward()
        heads.step()

    data = synthetic_data(size // 16)
    first = prototype_parameters(PARAMETERS.prototypes, PARAMETERS.repairs) | {"backbone": 0}
    fitted = {"prototypes": fit_prototypes(data, {}, first, 0, Context())}
    second = training_parameters(PARAMETERS.training, PARAMETERS.repairs) | {"backbone": 0, "epochs": 1}

    def training(steps: int) -> Callable[[], object]:
        return lambda: fit_modules(data, fitted, second | {"iterations_per_epoch": steps}, 0, Context())

    seconds = medians(3, published=published, few=training(10), many=training(60))
    step = (seconds["many"] - seconds["few"]) / 50
    print(f"  step at {size} px: {step * 1e3:.0f} ms, published {seconds['published'] * 1e3:.0f} ms")
    return seconds["published"] / step


def scoring(backbone: Backbone, size: int) -> float:
    """Scoring one image end to end (file, backbone, model) ÷ the backbone's forward."""
    folder = elpv.SOURCE.locate(Path("data/01_raw"))
    listed = elpv.SOURCE.list_samples(folder).head(1).assign(view="original", content_hash="")
    dataset = ViewImages(listed, ImageLoader("elpv", folder, int(1e8), Path("unused")).read, size)
    detector = load(fit_shortly(synthetic_data(size // 16)), torch.device("cpu"))
    bare = resnet18().eval().to(memory_format=torch.channels_last)
    ready = dataset[0][1][None].float().contiguous(memory_format=torch.channels_last)

    def end_to_end() -> None:
        pooled, maps = backbone.features(dataset[0][1][None], STATISTICS)
        detector.score_samples(FeatureRows(pooled.numpy(), maps.numpy(), np.arange(1), np.arange(1)))

    with torch.inference_mode():
        seconds = medians(30, forward=lambda: bare(ready), whole=end_to_end)
    return seconds["whole"] / seconds["forward"]


def main() -> None:
    """Measure everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=256, help="images for the extraction ratio")
    parser.add_argument("--compile", action="store_true", help="also measure extraction with torch.compile")
    parser.add_argument("--output", type=Path, default=Path(tempfile.gettempdir()) / "mpfm_speed.json")
    arguments = parser.parse_args()
    backbone = Backbone("resnet18", resnet18().state_dict(), ["auto"], ["auto"])
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    rows = {
        "extraction / bare forward loop, 224 px (goal: at least 0.9)": extraction(
            backbone, 224, arguments.images, False
        )
    }
    if arguments.compile:
        rows["extraction with torch.compile / bare forward loop, 224 px"] = extraction(
            backbone, 224, arguments.images, True
        )
    rows["published training step / ours, 224 px"] = training_step(224)
    rows["published training step / ours, 448 px"] = training_step(448)
    rows["scoring one image end to end / forward, 224 px (goal: at most 1.15)"] = scoring(backbone, 224)
    for name, ratio in rows.items():
        print(f"{ratio:8.2f}  {name}")
    arguments.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
