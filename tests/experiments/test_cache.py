"""Fitted pieces on disk: a file with its details, a cache keyed by digest, a folder with an index."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.cache import ArtefactFile, Cache, CheckpointFile, cache_key, load_folder, save_folder
from mpfm_kedro.files import MARK


def artefact(value: float) -> Artefact:
    return Artefact({"weight": torch.full((2, 3), value)}, {"value": value, "history": [{"epoch": 1}]})


def saved(path: Path, value: float = 1.0) -> ArtefactFile:
    file = ArtefactFile(path.with_name(path.name + ".safetensors"))
    file.save(artefact(value))
    return file


def value(file: ArtefactFile) -> float:
    return ArtefactFile(file.path).details["value"]  # as a new reader


def test_artefact_survives_storage(tmp_path):
    file = saved(tmp_path / "new" / "trained-1", 0.5)
    loaded = file.load()
    assert torch.equal(loaded.tensors["weight"], artefact(0.5).tensors["weight"])
    assert loaded.details == file.details == artefact(0.5).details
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["trained-1.safetensors"]


@pytest.mark.parametrize("size", [0, 4, 40])
def test_a_cut_file_is_an_error_that_names_it(tmp_path, size):
    file = saved(tmp_path / "piece")
    file.path.write_bytes(file.path.read_bytes()[:size])
    with pytest.raises(InputError, match=r"piece\.safetensors.*damaged"):
        _ = ArtefactFile(file.path).details


def test_digest_ignores_the_details(tmp_path):
    one, other = ArtefactFile(tmp_path / "one"), ArtefactFile(tmp_path / "other")
    one.save(artefact(1.0))
    other.save(replace(artefact(1.0), details={"seconds": 12.5}))
    assert one.digest() == other.digest()
    assert one.details != other.details


def test_numbers_do_not_depend_on_the_length_of_the_details(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(200, 384, generator=generator) for name in ("one", "other")}
    products = []
    for length in range(0, 64, 8):
        file = ArtefactFile(tmp_path / f"{length}.safetensors")
        file.save(Artefact(tensors, {"seconds": "1" * length}))
        loaded = file.load().tensors
        assert {value.data_ptr() % 64 for value in loaded.values()} == {0}
        products.append(torch.stack([one @ other for one, other in zip(*loaded.values(), strict=True)]))
    assert all(torch.equal(each, products[0]) for each in products)


def test_digest_names_the_tensors(tmp_path):
    one, same, other = (saved(tmp_path / str(i), number) for i, number in enumerate((1.0, 1.0, 2.0)))
    assert one.digest() == same.digest() != other.digest()


def test_tensors_that_share_memory_or_are_not_contiguous_are_stored(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    file = ArtefactFile(tmp_path / "piece.safetensors")
    file.save(Artefact({"rows": base[:, 1:], "turned": base.T, "same": base}))
    loaded = file.load().tensors
    assert torch.equal(loaded["rows"], base[:, 1:]) and torch.equal(loaded["turned"], base.T)


def test_link_is_independent_of_what_replaces_it(tmp_path):
    file = saved(tmp_path / "cache" / "entry", 1.0)
    linked = ArtefactFile(tmp_path / "models" / "piece.safetensors")
    for _ in range(2):  # again over itself
        file.link_to(linked.path)
    assert linked.path.samefile(file.path)
    linked.save(artefact(2.0))
    assert (value(file), value(linked)) == (1.0, 2.0)
    linked.delete()
    assert file.exists() and not linked.exists()
    assert list((tmp_path / "models").iterdir()) == []


def test_link_copies_where_the_file_system_has_no_links(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    saved(tmp_path / "entry", 3.0).link_to(tmp_path / "copy")
    assert value(ArtefactFile(tmp_path / "copy")) == 3.0


def test_a_cached_file_whose_checksum_is_not_found_is_computed_again(tmp_path, caplog):
    """A bit that flips in the mark of the checksum must not make a file one of those that have none."""
    file = saved(tmp_path / "piece.safetensors", 1.0)
    assert file.is_cached()
    content = file.path.read_bytes()
    file.path.write_bytes(content.replace(MARK, MARK.swapcase()))
    assert not ArtefactFile(file.path).is_cached()
    assert str(file.path) in caplog.text


def test_cache_entry_follows_the_key_and_the_kind(tmp_path):
    cache = Cache(tmp_path)
    key = cache_key(a=1, b=[1, 2])
    assert key == cache_key(b=[1, 2], a=1) != cache_key(a=1, b=[2, 1])
    assert cache.entry("trained", key) == cache.entry("trained", key) != cache.entry("prototypes", key)
    assert not cache.entry("trained", key).exists()


def test_restored_pieces_replace_cached_ones_with_other_numbers(tmp_path):
    version, cached = saved(tmp_path / "version" / "trained-1", 1.0), saved(tmp_path / "cache" / "trained-1", 2.0)
    (restored,) = Cache(tmp_path / "cache").restore({"run|MPFM|trained": version}).values()
    assert restored == cached
    assert restored.digest() == version.digest()


def test_a_checkpoint_counts_the_seconds_of_all_attempts(tmp_path):
    file = ArtefactFile(tmp_path / "checkpoint.safetensors")
    first = CheckpointFile(file, spent=100.0)
    assert first.load() is None
    first.save(artefact(1.0))
    second = CheckpointFile(ArtefactFile(file.path))
    assert torch.equal(second.load().tensors["weight"], artefact(1.0).tensors["weight"])
    assert second.seconds >= 100


def pieces(root: Path, *values: float) -> dict[str, ArtefactFile]:
    return {f"run {i}|MPFM|trained": saved(root / f"trained-{i}", number) for i, number in enumerate(values)}


def test_folder_holds_the_pieces_of_the_last_save_only_each_once(tmp_path):
    own = pieces(tmp_path / "cache", 0.0, 1.0, 2.0)
    own["run 3|λ=1|trained"] = own["run 0|MPFM|trained"]
    save_folder(tmp_path / "models", own)
    found = load_folder(tmp_path / "models")
    assert {name: value(file) for name, file in found.items()} == {name: value(file) for name, file in own.items()}
    assert len(list((tmp_path / "models").glob("*.safetensors"))) == 3
    del own["run 1|MPFM|trained"]
    save_folder(tmp_path / "models", own)
    assert list(load_folder(tmp_path / "models")) == list(own)
    assert len(list((tmp_path / "models").glob("*.safetensors"))) == 2


def test_present_models_share_blocks_with_the_cache_and_copies_do_not(tmp_path):
    own = pieces(tmp_path / "cache", 1.0)
    save_folder(tmp_path / "present", own)
    save_folder(tmp_path / "first", own, copy=True)
    save_folder(tmp_path / "second", own, copy=True, like=tmp_path / "first")
    (cached,) = (file.path for file in own.values())
    present, first, second = (tmp_path / name / cached.name for name in ("present", "first", "second"))
    assert present.samefile(cached)
    assert not first.samefile(cached)
    assert second.samefile(first)


def test_a_damaged_earlier_copy_is_not_shared(tmp_path):
    own = pieces(tmp_path / "cache", 1.0)
    save_folder(tmp_path / "first", own, copy=True)
    (damaged,) = (tmp_path / "first").glob("*.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    save_folder(tmp_path / "second", own, copy=True, like=tmp_path / "first")
    (copied,) = load_folder(tmp_path / "second").values()
    assert copied.digest() == next(iter(own.values())).digest()


def test_no_models_is_an_error_that_names_the_folder(tmp_path):
    with pytest.raises(InputError, match="No models in") as raised:
        load_folder(tmp_path / "models")
    assert str(tmp_path / "models") in str(raised.value)


def test_a_missing_piece_is_named(tmp_path):
    save_folder(tmp_path / "models", pieces(tmp_path / "cache", 1.0, 2.0))
    (tmp_path / "models/trained-1.safetensors").unlink()
    with pytest.raises(InputError, match=r"trained-1\.safetensors is missing"):
        load_folder(tmp_path / "models")


def test_a_checkpoint_that_cannot_be_read_is_ignored_with_a_warning(tmp_path, caplog):
    file = ArtefactFile(tmp_path / "checkpoint.safetensors")
    file.path.write_bytes(b"cut")
    assert CheckpointFile(file).load() is None
    assert "checkpoint" in caplog.text


def test_a_changed_letter_in_the_index_is_noticed(tmp_path):
    save_folder(tmp_path / "models", {"run|MPFM|training": saved(tmp_path / "piece")})
    index = tmp_path / "models/index.json"
    index.write_text(index.read_text().replace("MPFM", "MPFN"))
    with pytest.raises(InputError, match=r"index\.json is missing or damaged"):
        load_folder(tmp_path / "models")
