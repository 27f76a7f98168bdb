"""Models of anomalib on the project's images and weights: their torch classes, without its Lightning engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from general_elpv import Cell
from mpfm_kedro.backbones.backbone import MEAN, STD
from mpfm_kedro.backbones.extraction import ViewImages

BATCH = 32


def patchcore(ratio: float) -> tuple[nn.Module, Callable[[Any], None]]:
    """PatchCore with layer2 and layer3 as by default; ``ratio`` of the patches stay in its memory."""
    from anomalib.models.image.patchcore.torch_model import PatchcoreModel

    model = PatchcoreModel(["layer2", "layer3"], "resnet18", pre_trained=False)
    return model, lambda own: own.subsample_embedding(ratio)


def padim(ratio: float) -> tuple[nn.Module, Callable[[Any], None]]:
    """PaDiM with layer1, layer2 and layer3 and 100 features, its defaults for ResNet-18."""
    from anomalib.models.image.padim.torch_model import PadimModel

    return PadimModel("resnet18", ["layer1", "layer2", "layer3"], pre_trained=False), lambda own: own.fit()


def dfm(ratio: float) -> tuple[nn.Module, Callable[[Any], None]]:
    """DFM with layer3 and the reconstruction error of features, its defaults."""
    from anomalib.models.image.dfm.torch_model import DFMModel

    return DFMModel("resnet18", "layer3", pre_trained=False), lambda own: own.fit()


MODELS = {"PatchCore": patchcore, "PaDiM": padim, "DFM": dfm}


class Anomalib:
    """A model of anomalib that learns from images and scores images.

    Args:
        name: one of MODELS.
        weights: of ResNet-18, as torchvision names them.
        ratio: of PatchCore's coreset.
        workers: processes that decode images.
    """

    def __init__(self, name: str, weights: dict[str, Tensor], ratio: float, workers: int) -> None:
        self.workers = workers
        self.model, self._finish = MODELS[name](ratio)
        load_backbone(self.model.feature_extractor.feature_extractor, weights)
        self._mean, self._std = (255 * torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))

    def fit(self, cell: Cell) -> None:
        """Collect the features of all training normals, then fit."""
        self.model.train()
        self.model.feature_extractor.eval()
        with torch.no_grad():
            for _, images in self._batches(cell.dataset(cell.normals)):
                self.model(self._normalised(images))
            self._finish(self.model)

    def scores(self, cell: Cell) -> np.ndarray:
        """One for each test image; the heat maps, which these models always make, are dropped."""
        self.model.eval()
        with torch.no_grad():
            batches = self._batches(cell.dataset(cell.tested))
            scores = [self.model(self._normalised(images)).pred_score.flatten() for _, images in batches]
        return torch.cat(scores).double().numpy()

    def _batches(self, images: ViewImages) -> DataLoader:
        """As ``extract`` reads them."""
        return DataLoader(images, BATCH, num_workers=self.workers, prefetch_factor=4 if self.workers else None)

    def _normalised(self, images: Tensor) -> Tensor:
        return (images.float() - self._mean) / self._std


def load_backbone(network: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load the weights of the layers that a network has; a layer without weights is an error.

    timm names the tensors of ResNet-18 as torchvision does; it leaves out the layers that are not used.
    """
    own = network.state_dict()
    if missing := [name for name in own if name not in weights and not name.endswith("num_batches_tracked")]:
        raise ValueError(f"no weights for {', '.join(missing[:3])}")
    network.load_state_dict({name: weights.get(name, value) for name, value in own.items()})
