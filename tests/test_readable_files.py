"""Files are readable for those whom the umask allows."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pandas as pd
import pytest
import torch

from mpfm_kedro.atomic import save_table
from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.inspection.model import load_model, save_model
from mpfm_kedro.protocol.memory import Entry, Memory


@pytest.fixture(params=[0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_fits_tables_and_models_are_readable_for_those_whom_the_umask_allows(model_folder, tmp_path, umask):
    """safetensors itself would write files for their owner alone."""
    Memory(tmp_path / "memory").save(Entry("training", "key"), Artefact({"weight": torch.zeros(2)}), seconds=1)
    save_model(load_model(model_folder), tmp_path / "model")
    save_table(pd.DataFrame({"score": [0.5]}), tmp_path / "table.parquet")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 3
    assert {file.stat().st_mode & 0o777 for file in files} == {0o666 & ~umask}
    assert os.umask(umask) == umask
