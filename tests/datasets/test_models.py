"""Folders of fitted pieces in the catalog, and their versions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kedro.io import Version

from mpfm_kedro.datasets.models import CacheDataset, ModelsDataset
from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.experiments.cache import ArtefactFile, Cache

TIMES = [f"2026-01-0{day}T00.00.00.000Z" for day in (1, 2, 3)]


def piece(path: Path, value: float) -> ArtefactFile:
    file = ArtefactFile(path)
    file.save(Artefact({"weight": torch.full((3,), value)}, {"value": value}))
    return file


def test_cache_is_handed_out_and_never_saved(tmp_path):
    assert CacheDataset(str(tmp_path)).load() == Cache(tmp_path)
    with pytest.raises(Exception, match="only read"):
        CacheDataset(str(tmp_path)).save("anything")


def test_versions_share_unchanged_files_with_each_other_alone(tmp_path):
    steady = piece(tmp_path / "cache/prototypes-1.safetensors", 7.0)
    for number, time in enumerate(TIMES):
        changing = piece(tmp_path / f"cache/trained-{number}.safetensors", float(number))
        own = {"run|MPFM|prototypes": steady, "run|MPFM|trained": changing}
        ModelsDataset(str(tmp_path / "models"), Version(None, time)).save(own)
    latest = ModelsDataset(str(tmp_path / "models"), Version(None, None)).load()
    assert latest["run|MPFM|trained"].details["value"] == 2.0
    first = ModelsDataset(str(tmp_path / "models"), Version(TIMES[0], None)).load()
    assert first["run|MPFM|trained"].details["value"] == 0.0
    assert first["run|MPFM|prototypes"].path.samefile(latest["run|MPFM|prototypes"].path)
    assert not first["run|MPFM|prototypes"].path.samefile(steady.path)


def test_preview_names_trial_and_piece(tmp_path):
    dataset = ModelsDataset(str(tmp_path / "models"))
    dataset.save({"mono-M10-seed0|MPFM|trained": piece(tmp_path / "cache/trained-1.safetensors", 1.0)})
    shown = dict(dataset.preview())
    assert shown["columns"] == ["run", "method", "piece", "value"]
    assert shown["data"] == [["mono-M10-seed0", "MPFM", "trained", 1.0]]
