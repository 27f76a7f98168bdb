"""The feature network (ResNet-18 up to layer4, maps of three layers) in several engines, all from bytes to maps.

An engine is a function from a batch of bytes (B, 3, S, S) to the maps of the layers. Its package is imported when it is
built, so that a missing one can be named.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import cpu_flags
from torch import Tensor, nn
from torchvision.models import resnet18
from torchvision.models.feature_extraction import create_feature_extractor

from mpfm_kedro.backbones.backbone import Backbone

Engine = Callable[[Tensor], dict[str, Tensor]]
PIXELS = "pixels"


class Networks:
    """Builds each engine from the same weights.

    Args:
        weights: of ResNet-18.
        calibration: bytes of training normals (n, 3, S, S), for int8.
        folder: takes the exported files.
        threads: of every engine.
    """

    def __init__(self, weights: dict[str, Tensor], calibration: Tensor, folder: Path, threads: int) -> None:
        self.weights, self.calibration, self.folder, self.threads = weights, calibration, folder, threads
        self.backbone = Backbone("resnet18", weights, ["auto"], ["auto"])
        self.layers = list(dict.fromkeys([*self.backbone.map_layers, *self.backbone.layers]))

    def eager(self) -> Engine:
        """The project's own, with folded batch norms."""
        return self.backbone

    def eager_as_published(self) -> Engine:
        """Convolutions and batch norms one after the other, as torchvision has them."""
        network = resnet18().eval()
        network.load_state_dict(self.weights)
        network.requires_grad_(False)
        backbone = Backbone("resnet18", self.weights, ["auto"], ["auto"])
        backbone.network = create_feature_extractor(network, {layer: layer for layer in self.layers}).eval()
        return backbone.to(memory_format=torch.channels_last)

    def compiled(self) -> Engine:
        """As ``features.compile`` does."""
        network: Any = torch.compile(self.backbone, options={"freezing": True})
        with torch.inference_mode():
            network(self.calibration[:32])  # a compiler that is missing is missed here
        return network

    def onnx(self) -> Engine:
        """Fp32."""
        return self._session(self._exported())

    def onnx_int8(self) -> Engine:
        """Weights by channel, activations by tensor; both sides of each operation are quantised."""
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process

        images = iter({PIXELS: batch.numpy()} for batch in self.calibration.split(32))

        class Reader(quantization.CalibrationDataReader):
            def get_next(self) -> dict[str, np.ndarray] | None:
                return next(images, None)

        ready, quantised = self.folder / "ready.onnx", self.folder / "int8.onnx"
        quant_pre_process(self._exported(), ready)
        quantization.quantize_static(
            ready,
            quantised,
            Reader(),
            per_channel=True,
            reduce_range=not any("vnni" in flag for flag in cpu_flags()),  # sums of 16 bits would overflow
        )
        return self._session(quantised)

    def openvino(self) -> Engine:
        """Fp32, also where the processor has bf16."""
        return self._compiled_by_openvino(self._read_by_openvino())

    def openvino_int8(self) -> Engine:
        """Quantised after training by nncf."""
        os.environ.setdefault("NNCF_CI", "1")  # sends nothing about its use
        import nncf

        images = nncf.Dataset([batch.numpy() for batch in self.calibration.split(1)])
        return self._compiled_by_openvino(
            nncf.quantize(self._read_by_openvino(), images, subset_size=len(self.calibration))
        )

    def _exported(self) -> Path:
        """The network as an ONNX file."""
        file = self.folder / "fp32.onnx"
        if not file.exists():
            example = torch.zeros(2, *self.calibration.shape[1:], dtype=torch.uint8)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about what torch will do otherwise one day
                torch.onnx.export(
                    Maps(self.backbone).eval(),
                    (example,),
                    file,
                    input_names=[PIXELS],
                    output_names=self.layers,
                    dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                    external_data=False,
                    verbose=False,
                )
        return file

    def _session(self, file: Path) -> Engine:
        from mpfm_kedro.inspection.export import open_network

        session = open_network(file, self.threads)
        return lambda images: self._named(session.run(self.layers, {PIXELS: images.numpy()}))

    def _read_by_openvino(self) -> Any:
        import openvino

        return openvino.Core().read_model(self._exported())

    def _compiled_by_openvino(self, model: Any) -> Engine:
        import openvino

        options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": self.threads}
        compiled = openvino.compile_model(model, "CPU", options | {"PERFORMANCE_HINT": "LATENCY"})

        def run(images: Tensor) -> dict[str, Tensor]:
            found = compiled(images.numpy(), share_inputs=True, share_outputs=True)
            return self._named([found[layer] for layer in self.layers])

        return run

    def _named(self, maps: list[np.ndarray]) -> dict[str, Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # shared outputs cannot be written, and are not
            return dict(zip(self.layers, map(torch.from_numpy, maps), strict=True))


class Maps(nn.Module):
    """The maps of a backbone in order, for exports."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Bytes (B, 3, S, S) → a map of each layer."""
        return tuple(self.backbone(pixels).values())


def full_batches(images: Tensor, size: int) -> Iterator[tuple[slice, Tensor]]:
    """Batches of one size with their places; the last is filled up with first images, for an engine of one shape."""
    for start in range(0, len(images), size):
        batch = images[start : start + size]
        place = slice(start, start + len(batch))
        yield place, torch.cat([batch, images[: size - len(batch)]]) if len(batch) < size else batch
