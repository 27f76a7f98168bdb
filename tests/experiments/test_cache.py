"""Models on disk: one file and a copy of its details for people, a cache keyed by digest, a folder in the catalog."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kedro.io import Version

from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.cache import ArtefactFile, ArtefactsDataset, RunCache, RunCacheDataset
from mpfm_kedro.detectors.mpfm.artefact import Artefact


def artefact(value: float) -> Artefact:
    return Artefact({"weight": torch.full((2, 3), value)}, {"value": value, "history": [{"epoch": 1}]})


def saved(path: Path, value: float = 1.0) -> ArtefactFile:
    file = ArtefactFile(path)
    file.save(artefact(value))
    return file


def test_artefact_comes_back(tmp_path):
    file = saved(tmp_path / "new" / "run.v1-M10", 0.5)
    loaded = file.load()
    assert torch.equal(loaded.tensors["weight"], artefact(0.5).tensors["weight"])
    assert loaded.details == file.details() == artefact(0.5).details
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["run.v1-M10.json", "run.v1-M10.safetensors"]


def test_artefact_is_the_file_of_its_tensors(tmp_path):
    file = saved(tmp_path / "run", 0.5)
    assert json.loads((tmp_path / "run.json").read_text()) == file.details()
    (tmp_path / "run.json").write_text("notes of a reader")
    assert file.details() == artefact(0.5).details
    (tmp_path / "run.json").unlink()
    assert file.exists()
    assert file.load().details == artefact(0.5).details
    (tmp_path / "run.safetensors").unlink()
    assert not file.exists()


def test_copy_for_people_alone_is_no_artefact(tmp_path):
    file = saved(tmp_path / "run")
    (tmp_path / "run.safetensors").unlink()
    assert not file.exists()
    with pytest.raises(InputError, match="No model in"):
        ArtefactsDataset(str(tmp_path)).load()


def test_digest_passes_over_the_details(tmp_path):
    one, other = ArtefactFile(tmp_path / "one"), ArtefactFile(tmp_path / "other")
    one.save(artefact(1.0))
    other.save(replace(artefact(1.0), details={"seconds": 12.5}))
    assert one.digest() == other.digest()
    assert one.details() != other.details()


def test_digest_names_the_tensors(tmp_path):
    one, same, other = (saved(tmp_path / str(i), value) for i, value in enumerate((1.0, 1.0, 2.0)))
    assert one.digest() == same.digest() != other.digest()


def test_link_is_independent_of_what_replaces_it(tmp_path):
    file = saved(tmp_path / "cache" / "entry", 1.0)
    for _ in range(2):  # again over itself
        file.link_to(tmp_path / "models" / "run")
    linked = ArtefactFile(tmp_path / "models" / "run")
    assert linked.details()["value"] == 1.0
    linked.save(artefact(2.0))
    assert file.details()["value"] == 1.0
    assert torch.equal(file.load().tensors["weight"], artefact(1.0).tensors["weight"])
    linked.delete()
    assert file.exists()
    assert not linked.exists()
    assert list((tmp_path / "models").iterdir()) == []


def test_link_copies_where_the_file_system_has_no_links(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    saved(tmp_path / "entry", 3.0).link_to(tmp_path / "run")
    assert ArtefactFile(tmp_path / "run").load().details["value"] == 3.0


def test_link_without_the_copy_for_people(tmp_path):
    file = saved(tmp_path / "entry", 3.0)
    (tmp_path / "entry.json").unlink()  # saving was interrupted between the files
    file.link_to(tmp_path / "models" / "run")
    assert ArtefactFile(tmp_path / "models" / "run").details() == artefact(3.0).details
    assert json.loads((tmp_path / "models" / "run.json").read_text()) == artefact(3.0).details


def test_cache_entry_follows_the_key_and_the_kind(tmp_path):
    cache = RunCache(tmp_path)
    entry = cache.entry({"a": 1, "b": [1, 2]}, "model")
    assert cache.entry({"b": [1, 2], "a": 1}, "model") == entry
    assert len({entry, cache.entry({"a": 1, "b": [2, 1]}, "model"), cache.entry({"a": 1, "b": [1, 2]}, "initial")}) == 3
    assert not entry.exists()
    assert RunCacheDataset(str(tmp_path)).load() == cache
    with pytest.raises(Exception, match="entry by entry"):
        RunCacheDataset(str(tmp_path)).save("anything")


def test_folder_holds_the_runs_of_the_last_save_only(tmp_path):
    dataset = ArtefactsDataset(str(tmp_path / "models"))
    runs = {f"class.{i}-M10": saved(tmp_path / "cache" / str(i), float(i)) for i in range(3)}
    dataset.save(runs)
    assert {run: file.details()["value"] for run, file in dataset.load().items()} == {
        "class.0-M10": 0.0,
        "class.1-M10": 1.0,
        "class.2-M10": 2.0,
    }
    del runs["class.1-M10"]
    dataset.save(runs)
    assert list(dataset.load()) == ["class.0-M10", "class.2-M10"]
    assert len(list((tmp_path / "models").iterdir())) == 4


def test_no_model_is_an_error_that_names_the_folder(tmp_path):
    (tmp_path / "models").mkdir()
    with pytest.raises(InputError, match="No model in") as raised:
        ArtefactsDataset(str(tmp_path / "models")).load()
    assert str(tmp_path / "models") in str(raised.value)


def test_versions_are_kept_side_by_side(tmp_path):
    times = ["2026-01-01T00.00.00.000Z", "2026-01-02T00.00.00.000Z"]
    for value, time in enumerate(times):
        kept = ArtefactsDataset(str(tmp_path / "models"), Version(None, time))
        kept.save({"run": saved(tmp_path / "cache" / str(value), float(value))})
    assert ArtefactsDataset(str(tmp_path / "models"), Version(None, None)).load()["run"].details()["value"] == 1.0
    first = ArtefactsDataset(str(tmp_path / "models"), Version(times[0], None))
    assert first.load()["run"].details()["value"] == 0.0
