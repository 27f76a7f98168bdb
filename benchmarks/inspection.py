"""Speed of inspection as ratios from one run: ``make benchmark``.

A model on ResNet-18 at 224 pixels, with as many prototypes as a real one, and images of ELPV (300 pixels). What is
compared is measured in turns (see ``speed.py``). ``--processor-time`` counts seconds of the processor, not
of the clock: for a machine that has other work, too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import torch
import yaml
from PIL import Image
from torch import Tensor, nn
from torchvision.models import resnet18

from mpfm_kedro.backbones.backbone import Backbone
from mpfm_kedro.backbones.extraction import ViewImages, extract
from mpfm_kedro.detectors.mpfm.detector import keep_final
from mpfm_kedro.evaluation.columns import PART_COLUMNS
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.inspection.export import ExportedModel, open_network, run_network, write_network
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.model import FORMAT, Gallery, HeldOutScores, Model
from mpfm_kedro.inspection.predictions import PredictionLog, predict_files
from mpfm_kedro.inspection.thresholds import choose_threshold
from mpfm_kedro.parameters import FeatureParameters
from mpfm_kedro.sources import elpv
from speed import STATISTICS, fit_shortly, medians, processor_seconds, synthetic_data

Clock = Callable[[], float]
SIZE = 224


def make_model() -> Model:
    """A model of the usual size, fitted to made features."""
    data = synthetic_data(SIZE // 16)
    spec = {"backbone": "resnet18", "image_size": SIZE, "layers": ["auto"], "map_layers": ["auto"], "precision": "fp32"}
    spec |= {"statistics": STATISTICS, "map_shape": data.normals.maps.shape[1:]}
    scores = np.linspace(-3, 3, 1000)
    card = {"format": FORMAT, "pixel_range": "", "files": {}, "backbones": [spec]}
    card |= {"heat_map": {"low": 0.0, "high": 20.0}, "threshold": asdict(choose_threshold(scores, 0.01, 0.95))}
    names = pd.DataFrame({"sample_id": [f"{i}" for i in range(900)], "defect_class": "", "thumbnail": b""})
    gallery = Gallery(names, data.normals.pooled)
    table = pd.DataFrame(
        {"label": 0, "item": np.arange(1000), "score": scores, "likeness": 0.0, **dict.fromkeys(PART_COLUMNS, scores)}
    )
    seen = HeldOutScores(table)
    return Model(card, keep_final(fit_shortly(data)), [resnet18().state_dict()], seen, gallery)


class Bare(nn.Module):
    """The backbone alone, from pixels that have its size."""

    def __init__(self) -> None:
        super().__init__()
        self.network = resnet18().eval().to(memory_format=torch.channels_last)

    def forward(self, pixels: Tensor) -> Tensor:
        """Bytes (B, 3, S, S) → logits."""
        return self.network(pixels.float().contiguous(memory_format=torch.channels_last))


def one_and_many(model: Model, images: list[np.ndarray], folder: Path, clock: Clock) -> dict[str, float]:
    """Seconds of the inspector and of the exported network ÷ those of the bare backbone, for one image and a batch."""
    inspector, bare = Inspector(model, "cpu"), Bare()
    write_network(ExportedModel(model), folder / "model.onnx", "")
    example = torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8)
    torch.onnx.export(
        bare, (example,), folder / "bare.onnx", dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), verbose=False
    )
    threads = torch.get_num_threads()
    exported, bare_exported = (open_network(folder / f"{name}.onnx", threads) for name in ("model", "bare"))
    print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, {threads} threads")
    name = bare_exported.get_inputs()[0].name
    found = {}
    for count, repeats in ((1, 30), (len(images), 5)):
        prepared = [inspector.prepare(image) for image in images[:count]]
        pixels, ready = np.stack(images[:count]), torch.stack([own.pixels[0] for own in prepared])
        with torch.inference_mode():
            seconds = medians(
                repeats,
                clock,
                bare=lambda ready=ready: bare(ready),
                torch=lambda prepared=prepared: inspector.predict_prepared(prepared),
                bare_onnx=lambda ready=ready: bare_exported.run(None, {name: ready.numpy()}),
                onnx=lambda pixels=pixels: run_network(exported, pixels),
            )
        print("  " + ", ".join(f"{key} {1e3 * value / count:.1f} ms" for key, value in seconds.items()), "an image")
        what = "one image" if count == 1 else f"a batch of {count} (goal: at most 1.1)"
        found[f"inspector / bare backbone, {what}"] = seconds["torch"] / seconds["bare"]
        found[f"exported network with resizing / bare backbone in torch, {what}"] = seconds["onnx"] / seconds["bare"]
        found[f"exported network with resizing / exported backbone, {what}"] = seconds["onnx"] / seconds["bare_onnx"]
    return found


def folder_of_files(model: Model, listed: pd.DataFrame, raw: Path, folder: Path, clock: Clock) -> float:
    """Images per second of ``predict_files`` ÷ those of the bare extraction, with one process that decodes."""
    values: dict[str, Any] = yaml.safe_load(Path("conf/base/parameters_features.yml").read_text())["features"]
    parameters = FeatureParameters(**(values | {"statistics": STATISTICS, "compile": False, "workers": 1}))
    dataset = ViewImages(listed, ImageLoader("elpv", raw, int(1e8), Path("unused")).read, SIZE)
    backbone = Backbone("resnet18", resnet18().state_dict(), ["auto"], ["auto"])
    inspector = Inspector(model, "cpu")
    files = [raw / path for path in listed["path"]]
    logs = iter(range(1000))

    def extraction() -> None:
        for _ in extract(backbone, dataset, parameters, torch.device("cpu")):
            pass

    def prediction() -> None:
        log = PredictionLog(folder / f"{next(logs)}.jsonl")
        predict_files(inspector, files, log, inspector.threshold, workers=1)

    seconds = medians(3, clock, extraction=extraction, prediction=prediction)
    print(f"  {len(files) / seconds['prediction']:.0f} images per second are predicted")
    return seconds["extraction"] / seconds["prediction"]


def main() -> None:
    """Measure everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=256, help="files of the folder")
    parser.add_argument("--output", type=Path, default=Path(tempfile.gettempdir()) / "mpfm_inspection_speed.json")
    parser.add_argument("--processor-time", action="store_true", help="seconds of the processor, not of the clock")
    arguments = parser.parse_args()
    clock = processor_seconds if arguments.processor_time else time.perf_counter
    raw = elpv.SOURCE.locate(Path("data/01_raw"))
    listed = elpv.SOURCE.list_samples(raw).head(arguments.images).assign(view="original", content_hash="")
    images = [np.asarray(Image.open(raw / path).convert("RGB")) for path in listed["path"][:32]]
    model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        rows = one_and_many(model, images, Path(folder), clock)
        name = "images per second of predict_files / bare extraction (goal: at least 0.9)"
        rows[name] = folder_of_files(model, listed, raw, Path(folder), clock)
    for name, ratio in rows.items():
        print(f"{ratio:8.2f}  {name}")
    arguments.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
