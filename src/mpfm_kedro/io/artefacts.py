"""Model artefacts on disk: safetensors beside JSON, in a cache keyed by digest and in the catalog."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pandas as pd
from kedro.io import AbstractDataset, AbstractVersionedDataset, Version
from kedro_datasets._typing import TablePreview

from mpfm_kedro.errors import InputError
from mpfm_kedro.io.atomic import replacing
from mpfm_kedro.io.previews import show_table

if TYPE_CHECKING:
    from mpfm_kedro.model.artefact import Artefact


@dataclass(frozen=True)
class ArtefactFile:
    """One artefact: ``path`` without a suffix."""

    path: Path

    def exists(self) -> bool:
        """Whether the artefact is there."""
        return self._file(".safetensors").is_file()

    def details(self) -> dict[str, Any]:
        """Everything but the tensors, from the header of their file."""
        from safetensors import safe_open

        with safe_open(self._file(".safetensors"), framework="np") as file:
            return json.loads(file.metadata()["details"])

    def digest(self) -> str:
        """Names the numbers; the header, which also says how long they took, is passed over."""
        with self._file(".safetensors").open("rb") as file:
            file.seek(8 + int.from_bytes(file.read(8), "little"))
            return hashlib.file_digest(file, "sha256").hexdigest()[:24]

    def load(self) -> Artefact:
        """Tensors and details."""
        from safetensors.torch import load_file

        from mpfm_kedro.model.artefact import Artefact

        return Artefact(load_file(self._file(".safetensors")), self.details())

    def save(self, artefact: Artefact) -> None:
        """Write tensors and details in one step, and the details once more as JSON for people."""
        from safetensors.torch import save_file

        details = json.dumps(artefact.details, indent=1)
        with replacing(self._file(".safetensors")) as partial:
            save_file(artefact.tensors, partial, metadata={"details": details})
        with replacing(self._file(".json")) as partial:
            partial.write_text(details)

    def link_to(self, target: Path) -> None:
        """The same artefact under another name, sharing its disk blocks where the file system can."""
        tensors, details = self._file(".safetensors"), json.dumps(self.details(), indent=1)
        with replacing(target.with_name(target.name + ".safetensors")) as partial:
            try:
                os.link(tensors, partial)
            except OSError:
                shutil.copyfile(tensors, partial)
        with replacing(target.with_name(target.name + ".json")) as partial:  # the copy beside this one may be lost
            partial.write_text(details)

    def delete(self) -> None:
        """Remove both files."""
        for suffix in (".json", ".safetensors"):
            self._file(suffix).unlink(missing_ok=True)

    def _file(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)


@dataclass(frozen=True)
class RunCache:
    """Work on runs that an interrupted or later ``kedro run`` can take up, keyed by what it was made from."""

    root: Path

    def entry(self, key: dict[str, Any], kind: str) -> ArtefactFile:
        """The artefact made from ``key``, whether or not it exists yet."""
        content = json.dumps(key, sort_keys=True, default=str)
        return ArtefactFile(self.root / f"{kind}-{hashlib.sha256(content.encode()).hexdigest()[:24]}")


class RunCacheDataset(AbstractDataset[None, RunCache]):
    """Hands out the cache below ``filepath``."""

    def __init__(self, filepath: str, metadata: dict[str, Any] | None = None) -> None:
        self._root = Path(filepath)
        self.metadata = metadata

    def load(self) -> RunCache:
        """The cache."""
        return RunCache(self._root)

    def save(self, data: None) -> None:
        """Entries are written one by one."""
        raise NotImplementedError("a run cache is written entry by entry")

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._root)}

    def _exists(self) -> bool:
        return True


class ArtefactsDataset(AbstractVersionedDataset[dict[str, ArtefactFile], dict[str, ArtefactFile]]):
    """A folder with one artefact a run, ``<run>.safetensors`` and ``<run>.json``."""

    def __init__(self, filepath: str, version: Version | None = None, metadata: dict[str, Any] | None = None) -> None:
        super().__init__(PurePosixPath(filepath), version, exists_function=lambda path: Path(path).is_dir())
        self.metadata = metadata

    def load(self) -> dict[str, ArtefactFile]:
        """Handles by run; tensors are read when they are needed."""
        folder = Path(self._get_load_path())
        found = {file.stem: ArtefactFile(file.with_suffix("")) for file in sorted(folder.glob("*.safetensors"))}
        if not found:
            raise InputError(f"No model in {folder}")
        return found

    def save(self, data: dict[str, ArtefactFile]) -> None:
        """Link every run's artefact into the folder; those of runs that are no more are removed."""
        folder = Path(self._get_save_path())
        for run, artefact in data.items():
            artefact.link_to(folder / run)
        for file in folder.glob("*.safetensors"):
            if file.stem not in data:
                ArtefactFile(file.with_suffix("")).delete()

    def preview(self) -> TablePreview:
        """The runs and what is short among the details of their models, for kedro-viz."""
        rows = []
        for run, artefact in self.load().items():
            details = {"run": run} | artefact.details()
            rows.append({name: value for name, value in details.items() if isinstance(value, str | int | float)})
        return show_table(pd.DataFrame(rows))

    def _describe(self) -> dict[str, Any]:
        return {"filepath": str(self._filepath), "version": self._version}
