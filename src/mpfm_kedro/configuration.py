"""Configuration loading: the catalog may name a parameter, and every path is the project's.

Paths are made absolute here, so that a command does the same from whatever folder it is started, and a worker process
elsewhere finds the same files.
"""

from __future__ import annotations

import os
from functools import reduce
from pathlib import Path
from typing import Any

from kedro.config import OmegaConfigLoader
from kedro.io.core import generate_timestamp
from kedro.utils import find_kedro_project, is_kedro_project
from omegaconf import OmegaConf

from mpfm_kedro.errors import InputError, unknown
from mpfm_kedro.parameter_checks import complete
from mpfm_kedro.sources import SOURCES, folder

AUTO, OWN = "auto", "folder"
MAX_NAME = 255  # bytes
MAX_PATH = 3500  # bytes of a folder: with the names of the files in it there are at most 4095
ENVIRONMENTS = {"base_env": "base", "default_run_env": "local", "merge_strategy": {"parameters": "soft"}}


def project_root() -> Path:
    """The Kedro project around the current folder, as ``kedro`` itself finds it."""
    return find_kedro_project(Path.cwd()) or Path.cwd()


def output_path(path: str | Path, project: Path) -> Path:
    """A folder to write to: a relative one is below the project."""
    folder = _usable(project / Path(path).expanduser())
    if folder.resolve() == Path(folder.anchor):
        raise InputError(f"'{path}' is the root of the file system; results are written to a folder of their own")
    return folder


def input_path(path: str | Path, project: Path) -> Path:
    """A file or folder to read: below the project, unless it exists only below the current folder."""
    inside, here = (_usable(folder / Path(path).expanduser()) for folder in (project, Path.cwd()))
    return here if here.exists() and not inside.exists() else inside


def _usable(path: Path) -> Path:
    """Refuse a name that no file can have."""
    if longest := next((name for name in path.parts if len(os.fsencode(name)) > MAX_NAME), None):
        raise InputError(f"'{longest[:20]}…' has {len(longest)} characters; a file or folder has at most {MAX_NAME}")
    if len(os.fsencode(path)) > MAX_PATH:
        raise InputError(f"'{str(path)[:20]}…' has {len(str(path))} characters; a path has at most {MAX_PATH} here")
    return path


def project_loader(env: str | None = None, **parameters: Any) -> ProjectConfigLoader:
    """The configuration of the project around the current folder."""
    return ProjectConfigLoader(str(project_root() / "conf"), env=env, runtime_params=parameters, **ENVIRONMENTS)


def result_name(name: Any, dataset: str, data_root: str) -> str:
    """The name of results in paths and tables: the one given, or that of the dataset; of own images, their folder's.

    No folder of own images shares its name with a published dataset, and none is taken for the folder of one.
    """
    root = Path(data_root)
    if dataset != OWN and folder.has_layout(root) and not (root / dataset).exists():
        raise InputError(
            f"Parameter 'data_root' = '{root}' has images of its own, and dataset = {dataset} would not use them: "
            f"--params=dataset={OWN},data_root={root}"
        )
    if name != AUTO:
        return str(name)
    if dataset != OWN:
        return dataset
    folder_name = folder.own_name(Path(data_root))
    return f"own_{folder_name}" if folder_name in SOURCES and folder_name != OWN else folder_name


class ProjectConfigLoader(OmegaConfigLoader):
    """OmegaConfigLoader with absolute paths and a name in the parameters, and ``${param:…}`` in the catalog.

    ``${param:…}`` is a parameter as this run has it: paths such as ``${param:output_root}/${param:name}``
    follow ``--params=dataset=…`` and the environment, while the parameter files stay free of resolvers (other tools
    read them too).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.started = generate_timestamp()
        conf = Path(self.conf_source)
        if self.env and conf.is_dir() and not (conf / self.env).is_dir():
            known = {file.parent.name for file in conf.glob("*/parameters*.yml")} - {self.base_env}
            raise unknown("environment", self.env, known)

    @property
    def project(self) -> Path:
        """The project that the configuration belongs to; for one from elsewhere, that of the current folder."""
        parent = Path(self.conf_source).absolute().parent
        return parent if is_kedro_project(parent) else project_root()

    def __getitem__(self, key: str) -> Any:
        if key == "parameters":
            return complete(self._located(self._read(key)))
        if key == "catalog":
            parameters = self["parameters"]
            # resolvers are global to the process: the loader that reads must be the one that answers
            OmegaConf.register_new_resolver(
                "param", lambda name: reduce(lambda group, part: group[part], name.split("."), parameters), replace=True
            )
        return self._read(key)

    def _read(self, key: str) -> Any:
        try:
            return super().__getitem__(key)
        except RecursionError as error:
            raise InputError(f"A value of the {key} is nested too deeply") from error

    def _located(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Parameters with absolute paths and the name of results."""
        for group, name, absolute in (
            (parameters, "data_root", input_path),
            (parameters, "output_root", output_path),
            (parameters, "images", input_path),
            (parameters, "study", input_path),
            (parameters.get("features"), "weights_file", input_path),
        ):
            if isinstance(group, dict) and isinstance(group.get(name), str) and group[name]:
                group[name] = str(absolute(group[name], self.project))
        if parameters.get("batch") == AUTO:
            parameters["batch"] = self.started
        if "name" in parameters:
            study, name = parameters.get("study"), parameters["name"]
            name = Path(study).stem if study and name == AUTO else name
            parameters["name"] = result_name(name, str(parameters["dataset"]), str(parameters["data_root"]))
        return parameters
