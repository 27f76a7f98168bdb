"""Files are readable for those whom the umask allows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.experiments.cache import ArtefactFile, save_folder


@pytest.fixture(params=[0o022, 0o027, 0o077])
def umask(request) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


def test_model_files_are_readable_for_those_whom_the_umask_allows(tmp_path, umask):
    piece = ArtefactFile(tmp_path / "cache" / "piece.safetensors")
    piece.save(Artefact({"weight": torch.zeros(2)}, {}))
    save_folder(tmp_path / "models", {"piece": piece})
    save_folder(tmp_path / "version", {"piece": piece}, copy=True)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) == 5
    assert {mode(file) for file in files} == {0o666 & ~umask}
    assert os.umask(umask) == umask


def test_models_of_earlier_versions_become_readable_where_they_are_used(tmp_path):
    piece = ArtefactFile(tmp_path / "cache" / "piece.safetensors")
    piece.save(Artefact({"weight": torch.zeros(2)}, {}))
    piece.path.chmod(0o600)
    save_folder(tmp_path / "models", {"piece": piece})
    assert mode(tmp_path / "models" / "piece.safetensors") & 0o044
