"""Files of fits: there whole or not at all, equal bytes for equal fits, and a damaged one is named."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.errors import InputError
from mpfm_kedro.protocol.memory import Entry, Memory, read_artefact, write_artefact

ENTRY = Entry("training", "key")


def artefact(value: float = 1.0) -> Artefact:
    return Artefact({"weight": torch.full((2, 3), value), "bias": torch.ones(3)}, {"value": value, "history": [1]})


def test_a_fit_comes_back_and_its_seconds_are_beside_it(tmp_path):
    memory = Memory(tmp_path)
    assert not memory.has(ENTRY)
    memory.save(ENTRY, artefact(0.5), 12.345)
    assert memory.has(ENTRY) and not memory.has(Entry("prototypes", "key"))
    found = memory.load(ENTRY)
    assert torch.equal(found.tensors["weight"], artefact(0.5).tensors["weight"])
    assert found.details == memory.details(ENTRY) == artefact(0.5).details
    assert memory.seconds(ENTRY) == pytest.approx(12.345, abs=0.01)
    assert torch.tensor(memory.seconds(Entry("training", "of another machine"))).isnan()
    assert [path.name for path in memory.file(ENTRY).parent.iterdir()] == ["key.safetensors"]


def test_equal_fits_have_equal_bytes_in_whatever_order_they_were_filled(tmp_path):
    numbers, digests = list(range(20)), set()
    for attempt in range(4):  # a file with several keys of metadata has them in another order each time
        names = [f"tensor {number}" for number in (numbers if attempt % 2 else numbers[::-1])]
        fit = Artefact({name: torch.full((3,), float(name[7:])) for name in names}, dict.fromkeys(names, 1))
        memory = Memory(tmp_path / str(attempt))
        memory.save(ENTRY, fit, seconds=attempt)
        digests.add(hashlib.md5(memory.file(ENTRY).read_bytes()).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    "damage", [lambda content: content[:0], lambda content: content[:40], lambda content: b"{" * 99]
)
def test_a_damaged_fit_is_named_and_counts_as_missing(damage, tmp_path, caplog):
    memory = Memory(tmp_path)
    memory.save(ENTRY, artefact(), 1)
    memory.file(ENTRY).write_bytes(damage(memory.file(ENTRY).read_bytes()))
    assert not memory.has(ENTRY)
    assert str(memory.file(ENTRY)) in caplog.text and "computed again" in caplog.text
    with pytest.raises(InputError, match=r"training/key\.safetensors is missing or damaged") as raised:
        memory.load(ENTRY)
    assert "\n" not in str(raised.value)


def test_a_process_that_dies_while_it_writes_leaves_the_fit_before(tmp_path, monkeypatch):
    memory = Memory(tmp_path)
    memory.save(ENTRY, artefact(1.0), 1)

    def die(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content[:9])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "write_bytes", die)
        memory.save(ENTRY, artefact(2.0), 1)
    assert memory.load(ENTRY).details["value"] == 1.0
    assert len(list(memory.file(ENTRY).parent.iterdir())) == 1


def test_a_full_disk_is_one_clear_line(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(InputError, match=r"Cannot write .*key\.safetensors: No space left on device; it needs more"):
        Memory(tmp_path).save(ENTRY, artefact(), 1)


def test_a_checkpoint_counts_the_seconds_of_all_attempts(tmp_path):
    first = Memory(tmp_path).checkpoint(ENTRY)
    assert first.load() is None and first.epoch == 0
    first.spent = 100.0
    first.save(Artefact(artefact().tensors, {"epoch": 4}))
    second = Memory(tmp_path).checkpoint(ENTRY)
    state = second.load()
    assert state is not None and torch.equal(state.tensors["weight"], artefact().tensors["weight"])
    assert second.seconds >= 100 and second.epoch == 4


def test_a_checkpoint_that_cannot_be_read_is_ignored_with_a_warning(tmp_path, caplog):
    checkpoint = Memory(tmp_path).checkpoint(ENTRY)
    checkpoint.save(artefact())
    checkpoint.file.write_bytes(b"cut")
    assert checkpoint.load() is None and checkpoint.epoch == 0
    assert str(checkpoint.file) in caplog.text


def test_numbers_do_not_depend_on_the_length_of_the_details(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(200, 384, generator=generator) for name in ("one", "other")}
    products = []
    for length in range(0, 64, 8):
        write_artefact(tmp_path / "fit.safetensors", Artefact(tensors, {"note": "1" * length}))
        loaded = read_artefact(tmp_path / "fit.safetensors").tensors
        assert {value.data_ptr() % 64 for value in loaded.values()} == {0}
        products.append(loaded["one"] @ loaded["other"].T)
    assert all(torch.equal(each, products[0]) for each in products)


def test_tensors_that_share_memory_or_are_not_contiguous_are_stored(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    write_artefact(tmp_path / "fit.safetensors", Artefact({"rows": base[:, 1:], "turned": base.T, "same": base}))
    loaded = read_artefact(tmp_path / "fit.safetensors").tensors
    assert torch.equal(loaded["rows"], base[:, 1:]) and torch.equal(loaded["turned"], base.T)
