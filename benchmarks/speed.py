"""Speed as ratios from one run: ``make benchmark``.

Machines are noisy, ratios less so: what is compared is measured in turns, and the medians are divided.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor, nn
from torchvision.models import resnet18

from mpfm_kedro.backbones.extraction import Backbone, ViewImages, extract
from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.mpfm.assembly import initial_model
from mpfm_kedro.detectors.mpfm.closed_form import fit_closed_form
from mpfm_kedro.detectors.mpfm.division import Division
from mpfm_kedro.detectors.mpfm.heads import LinearScore, LocalScore
from mpfm_kedro.detectors.mpfm.model import MPFM
from mpfm_kedro.detectors.mpfm.objective import Options, losses
from mpfm_kedro.detectors.mpfm.prototypes import initialise
from mpfm_kedro.detectors.mpfm.trainer import Schedule, TrainingSet, draw_batch
from mpfm_kedro.detectors.mpfm.training import training_set
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.parameters import FeatureParameters
from mpfm_kedro.sources import elpv

STATISTICS = ["mean", "max", "std"]
SCHEDULE = Schedule(50, 20, 32, 16, 0.5, 2e-4, 1e-5, 1.0)
OPTIONS = Options(mim_weight=0.1, mim_sharpness=50.0, push_margin=0.1, head_penalty=1.0)


def medians(repeats: int, **work: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each piece of work, done in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repeats + 1):
        for name, function in work.items():
            start = time.perf_counter()
            function()
            if turn:  # the first turn warms up
                seconds[name].append(time.perf_counter() - start)
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


def synthetic_model(side: int, n: int = 900) -> tuple[MPFM, TrainingSet]:
    """The default model with K = 32 on features of the default backbone."""
    normals, held_back, anomalies = (synthetic_rows(k, 2304, 384, side, k) for k in (n, 230, 40))
    closed_form, _ = fit_closed_form(normals, normals, held_back, 4, 50, top_share=0.05, seed=0)
    prototypes = initialise(closed_form, normals, n_prototypes=32, transport_steps=1, seed=0)
    model = initial_model(closed_form, prototypes, hidden=128, seed=0)
    division = Division(normals, normals, anomalies, held_back, held_back)
    return model, training_set(model, closed_form, division, seed=0, coupled=True)


def training_step(size: int) -> float:
    """The published step (backbone forward on a batch of 48, then its heads) ÷ our step."""
    images = torch.randn(48, 3, size, size).contiguous(memory_format=torch.channels_last)
    network = nn.Sequential(*list(resnet18().eval().to(memory_format=torch.channels_last).children())[:-2])
    local, linear = LocalScore(torch.zeros(512), torch.ones(512), 0.1), LinearScore(512)
    target = torch.tensor([0.0] * 16 + [1.0] * 32)
    heads = torch.optim.AdamW([*local.parameters(), *linear.parameters()])

    def published() -> None:
        with torch.no_grad():
            maps: Tensor = network(images)
        score = local(maps, None) - linear(maps.mean((2, 3)))
        heads.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(score, target).backward()
        heads.step()

    model, data = synthetic_model(size // 16)
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=1e-5, fused=True)

    def ours() -> None:
        for _ in range(10):
            batch = draw_batch(model, data, SCHEDULE, generator, torch.device("cpu"))
            terms, _ = losses(model, batch, OPTIONS, generator)
            optimiser.zero_grad(set_to_none=True)
            terms.total(OPTIONS).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()

    seconds = medians(3, published=published, ours=ours)
    print(f"  step at {size} px: {seconds['ours'] / 10 * 1e3:.0f} ms, published {seconds['published'] * 1e3:.0f} ms")
    return 10 * seconds["published"] / seconds["ours"]


def scoring(backbone: Backbone, size: int) -> float:
    """Scoring one image end to end (file, backbone, model) ÷ the backbone's forward."""
    folder = elpv.SOURCE.locate(Path("data/01_raw"))
    listed = elpv.SOURCE.list_samples(folder).head(1).assign(view="original", content_hash="")
    dataset = ViewImages(listed, ImageLoader("elpv", folder, int(1e8), Path("unused")).read, size)
    model, _ = synthetic_model(size // 16)
    bare = resnet18().eval().to(memory_format=torch.channels_last)
    ready = dataset[0][1][None].float().contiguous(memory_format=torch.channels_last)

    def end_to_end() -> None:
        model.score(*backbone.features(dataset[0][1][None], STATISTICS))

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
    rows["published training step / ours, 224 px (goal: at least 40)"] = training_step(224)
    rows["published training step / ours, 448 px (goal: at least 150)"] = training_step(448)
    rows["scoring one image end to end / forward, 224 px (goal: at most 1.15)"] = scoring(backbone, 224)
    for name, ratio in rows.items():
        print(f"{ratio:8.2f}  {name}")
    arguments.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
