"""Folders that are replaced in one step."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event, Thread

import pytest

from mpfm_kedro import files
from mpfm_kedro.files import replace_folder


def make(folder: Path, content: str) -> Path:
    folder.mkdir()
    (folder / "file").write_text(content)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot exchange two folders")
def test_a_folder_is_there_at_any_time_while_it_is_replaced(tmp_path: Path):
    folder, stop, missing = make(tmp_path / "model", "0"), Event(), []

    def look() -> None:
        while not stop.is_set():
            if not (folder / "file").is_file():
                missing.append(1)

    reader = Thread(target=look)
    reader.start()
    for number in range(1, 300):
        replace_folder(make(tmp_path / "new", str(number)), folder)
    stop.set()
    reader.join()
    assert not missing
    assert [path.name for path in tmp_path.iterdir()] == ["model"] and (folder / "file").read_text() == "299"


@pytest.mark.parametrize("can", [True, False])
def test_a_folder_is_replaced_whatever_the_system_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can: bool):
    if not can:
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    for content in ("first", "second"):
        replace_folder(make(tmp_path / "new", content), tmp_path / "model")
        assert (tmp_path / "model/file").read_text() == content
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
