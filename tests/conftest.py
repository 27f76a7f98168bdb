"""A production model of the synthetic images, fitted once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

from running import run

if "FUZZ_SHARE" not in os.environ:  # make fuzz tries other inputs each time
    settings.register_profile("equal", derandomize=True)
    settings.load_profile("equal")

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # some virtual machines claim AMX and have none


@pytest.fixture(scope="session")
def fitted_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with raw images (raw) and all that the pipeline fit makes of them (out)."""
    folder = tmp_path_factory.mktemp("fitted")
    run("fit", folder)
    return folder


@pytest.fixture(scope="session")
def model_folder(fitted_project: Path) -> Path:
    """The folder of the production model, not to be changed."""
    return fitted_project / "out/06_models/synthetic/production/model"


@pytest.fixture
def own_model_folder(model_folder: Path, tmp_path: Path) -> Path:
    """A copy of the model folder."""
    return Path(shutil.copytree(model_folder, tmp_path / "model"))
