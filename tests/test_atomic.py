"""Files: replaced in one step and put on the disk."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save

from mpfm_kedro.atomic import (
    load_table,
    readable_folder,
    replacing,
    replacing_folder,
    save_table,
)
from mpfm_kedro.errors import InputError

TABLE = pd.DataFrame({"sample": ["a", "b"], "score": [0.5, 2.0]})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 200 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    order = []
    sync, rename = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        order.append(Path(f"/proc/self/fd/{descriptor}").resolve())
        sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        order.append("renamed")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    with replacing(tmp_path / "a.txt") as partial:
        partial.write_text("content")
    assert order == [partial, "renamed", tmp_path]


def test_a_full_disk_is_named_with_what_is_needed_and_leaves_the_earlier_file(small_disk):
    file = small_disk / "table.parquet"
    save_table(TABLE, file)
    expected = rf"^Cannot write {file}: No space left on device; it needs 400 kB, \d+ kB are free$"
    with pytest.raises(InputError, match=expected), replacing(file, 400_000) as partial:
        partial.write_bytes(save({"a": torch.zeros(100_000)}))
    with pytest.raises(InputError, match=r"table\.parquet: No space left on device; it needs more, \d+ kB are free$"):
        save_table(pd.DataFrame({"a": np.random.default_rng(0).random(100_000)}), file)
    assert load_table(file).equals(TABLE)
    assert list(small_disk.iterdir()) == [file]


def test_an_error_of_the_system_is_found_behind_others(tmp_path):
    with pytest.raises(InputError, match=r"a\.txt: No space left on device") as raised, replacing(tmp_path / "a.txt"):
        try:
            raise OSError(errno.ENOSPC, "full")
        except OSError as error:
            raise RuntimeError("saving failed") from error
    assert "\n" not in str(raised.value)


def test_a_folder_that_moves_away_while_it_is_written_to_is_one_line(tmp_path):
    there, away = tmp_path / "there", tmp_path / "away"
    for write, name in ((replacing, "a.txt"), (replacing_folder, "model")):
        there.mkdir()
        with pytest.raises(InputError) as raised, write(there / name) as partial:
            (partial / "b.txt" if name == "model" else partial).write_text("content")
            there.rename(away)
        assert str(raised.value) == f"Cannot write {there / name}: No such file or directory"
        assert not there.exists() and not (away / name).exists()
        shutil.rmtree(away)


def test_a_changed_bit_of_a_table_is_an_error_or_changes_nothing(tmp_path):
    """The fuzzers, which try what else may happen, rarely change a number and nothing else."""
    file = tmp_path / "table.parquet"
    save_table(TABLE, file)
    content = file.read_bytes()
    for place in range(0, len(content), 7):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with suppress(InputError):
            assert load_table(file).equals(TABLE)


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    for text in ("first", "second"):
        write_folder(tmp_path / "model", text)
    with pytest.raises(KeyError), replacing_folder(tmp_path / "model") as partial:
        (partial / "a.txt").write_text("third")
        raise KeyError
    assert (tmp_path / "model/a.txt").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def write_folder(folder: Path, content: str) -> None:
    with replacing_folder(folder) as partial:
        (partial / "a.txt").write_text(content)


@pytest.mark.parametrize("again", [False, True])
def test_the_earlier_folder_is_read_where_a_replacement_was_killed(tmp_path, again):
    """Killed between the two renamings: the earlier folder has lost its name, the new one has none yet."""
    folder = tmp_path / "model"
    write_folder(folder, "first")
    folder.rename(tmp_path / ".old.model")
    if again:  # and the next replacement fails, too
        with pytest.raises(KeyError), replacing_folder(folder):
            raise KeyError
    assert (readable_folder(folder) / "a.txt").read_text() == "first"
    write_folder(folder, "second")
    assert (readable_folder(folder) / "a.txt").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
