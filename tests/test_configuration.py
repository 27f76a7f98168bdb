"""A parameter named in the catalog is the one of this run, and every path is the project's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torchvision.models import get_model

from mpfm_kedro import cli
from mpfm_kedro.configuration import ProjectConfigLoader, input_path, output_path
from mpfm_kedro.errors import InputError

PROJECT = Path(__file__).parents[1]
ARGUMENTS = {"base_env": "base", "default_run_env": "local", "merge_strategy": {"parameters": "soft"}}


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    files: dict[str, dict[str, Any]] = {
        "base/catalog.yml": {
            "table": {"type": "pandas.CSVDataset", "filepath": "data/${param:dataset}/${param:group.size}.csv"}
        },
        "base/parameters.yml": {"dataset": "elpv", "group": {"size": 1, "other": 2}},
        "paper/parameters.yml": {"group": {"size": 448}},
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(yaml.safe_dump(content))
    (tmp_path / "local").mkdir()
    return tmp_path


def loader(conf: Path, **options: Any) -> ProjectConfigLoader:
    return ProjectConfigLoader(str(conf), **(ARGUMENTS | options))


def path(loader: ProjectConfigLoader) -> str:
    return loader["catalog"]["table"]["filepath"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "data/elpv/1.csv"),
        ({"runtime_params": {"dataset": "aitex"}}, "data/aitex/1.csv"),
        ({"env": "paper"}, "data/elpv/448.csv"),
        ({"env": "paper", "runtime_params": {"group": {"size": 64}}}, "data/elpv/64.csv"),
    ],
)
def test_catalog_follows_environment_and_typed_parameters(options, expected, conf):
    assert path(loader(conf, **options)) == expected


def test_loaders_in_one_process_do_not_mix(conf):
    first = loader(conf, runtime_params={"dataset": "first"})
    second = loader(conf, runtime_params={"dataset": "second"})
    assert path(first) == "data/first/1.csv"
    assert path(second) == "data/second/1.csv"
    assert path(first) == "data/first/1.csv"


def test_further_resolvers_stay(conf):
    (conf / "base" / "catalog.yml").write_text("table: {filepath: '${twice:ab}/${param:dataset}'}")
    assert path(loader(conf, custom_resolvers={"twice": lambda text: text * 2})) == "abab/elpv"


def test_unknown_parameter_in_the_catalog_is_an_error(conf):
    (conf / "base" / "catalog.yml").write_text("table: {filepath: '${param:nonsense}'}")
    with pytest.raises(Exception, match="nonsense"):
        path(loader(conf))


def test_project_s_own_catalog_follows_the_dataset():
    catalog = loader(PROJECT / "conf", runtime_params={"dataset": "brainmri", "output_root": "elsewhere"})["catalog"]
    assert catalog["samples"]["filepath"].startswith(f"{PROJECT}/elsewhere/")
    assert "/brainmri/" in catalog["samples"]["filepath"]
    assert catalog["images"]["dataset"] == "brainmri"


@pytest.mark.parametrize(
    ("folder", "typed", "expected"),
    [
        ("bolts", {}, "bolts"),
        ("line 2/Große Teile (neu)", {}, "Große_Teile_neu"),
        ("elpv", {}, "own_elpv"),
        ("bolts", {"name": "m8"}, "m8"),
        ("bolts", {"name": 2024}, "2024"),
    ],
)
def test_own_images_have_the_name_of_their_folder(folder, typed, expected, tmp_path):
    (tmp_path / folder / "good").mkdir(parents=True)
    runtime = {"dataset": "folder", "data_root": str(tmp_path / folder), **typed}
    configuration = loader(PROJECT / "conf", runtime_params=runtime)
    assert configuration["parameters"]["name"] == expected
    assert all(
        f"/{expected}/" in configuration["catalog"][name]["filepath"]
        for name in ("images", "samples", "features", "{study}_models", "{study}_report", "{study}_scores")
    )
    assert configuration["catalog"]["images"]["dataset"] == "folder"


@pytest.mark.parametrize(
    ("inside", "expected"), [("folder/good", "folder"), ("folder/nuts/good", "nuts"), ("x", "folder")]
)
def test_own_images_below_the_data_root(inside, expected, tmp_path):
    (tmp_path / inside).mkdir(parents=True)
    runtime = {"dataset": "folder", "data_root": str(tmp_path)}
    assert loader(PROJECT / "conf", runtime_params=runtime)["parameters"]["name"] == expected


def strings(entry: Any) -> list[str]:
    if isinstance(entry, dict):
        return [text for value in entry.values() for text in strings(value)]
    return [entry] if isinstance(entry, str) else []


@pytest.mark.parametrize("env", ["base", "paper", "test", "dvc", "dvc_test", "reference", "strong"])
def test_every_path_is_absolute_in_every_folder(env, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()  # a folder of the name of an output folder decides nothing
    monkeypatch.chdir(tmp_path)
    runtime = {"features": {"weights_file": "own.pth"}}
    configuration = loader(PROJECT / "conf", env=env, runtime_params=runtime)
    parameters = configuration["parameters"]
    assert parameters["data_root"] == str(PROJECT / "data/01_raw")
    assert Path(parameters["output_root"]).is_relative_to(PROJECT / "data")
    assert parameters["features"]["weights_file"] == str(PROJECT / "own.pth")
    for name, entry in configuration["catalog"].items():
        given = {key: value for key, value in entry.items() if key != "filepath"}  # Kedro itself makes these absolute
        relative = [text for text in strings(given) if "/" in text and not text.startswith("/")]
        assert not relative, name


def test_absolute_paths_stay(tmp_path):
    names = {"data_root": str(tmp_path / "raw"), "output_root": str(tmp_path / "out")}
    parameters = loader(PROJECT / "conf", runtime_params=names)["parameters"]
    assert {name: parameters[name] for name in names} == names


def test_images_are_looked_for_in_the_project_then_in_the_current_folder(project, tmp_path, monkeypatch):
    here = tmp_path / "elsewhere"
    (here / "parts").mkdir(parents=True)
    (here / "both").mkdir()
    (project / "both").mkdir()
    monkeypatch.chdir(here)

    def data_root(typed: str) -> str:
        return loader(project / "conf", runtime_params={"data_root": typed})["parameters"]["data_root"]

    assert data_root("parts") == str(here / "parts")
    assert data_root("both") == str(project / "both")
    assert data_root("neither") == str(project / "neither")


def test_wrong_type_of_a_path_is_left_to_the_check_of_parameters():
    runtime = {"data_root": 5, "features": {"weights_file": 7}}
    parameters = loader(PROJECT / "conf", runtime_params=runtime)["parameters"]
    assert (parameters["data_root"], parameters["features"]["weights_file"]) == (5, 7)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project with no data."""
    folder = tmp_path / "project"
    shutil.copytree(PROJECT / "conf", folder / "conf")
    shutil.copy(PROJECT / "pyproject.toml", folder)
    shutil.copytree(PROJECT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (folder / "below/deeper").mkdir(parents=True)
    return folder


def kedro(folder: Path, *arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("kedro")), *arguments]
    environment = os.environ | {"DO_NOT_TRACK": "1"}
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_commands_in_a_subfolder_use_the_project_s_folders(project: Path):
    name = "squeezenet1_1"
    torch.save(get_model(name, weights=None).state_dict(), project / "own.pth")
    below = project / "below/deeper"
    run = ["run", "--env=test", "--pipelines=features"]
    kedro(below, *run, f"--params=backbone={name},features.weights_file=own.pth")
    assert list((project / "below").rglob("*")) == [below]
    assert len(list((project / "data/04_feature").glob("*/features.parquet"))) == 1
    assert len({file.parent for file in (project / "data/04_feature/store").glob("*/*.keys.txt")}) == 1
    assert name in kedro(below, "store", "list")
    assert name in kedro(project, "store", "list")
    assert f"{project}/data/01_raw/" in kedro(below, "fetch", "data", "synthetic")
    assert list((project / "below").rglob("*")) == [below]


def test_weights_are_fetched_to_where_the_catalog_reads_them(project: Path):
    cached = PROJECT / "data/01_raw/weights/resnet18.safetensors"
    if cached.is_file():  # else the package index is asked
        (project / "data/01_raw/weights").mkdir(parents=True)
        shutil.copy(cached, project / "data/01_raw/weights")
    file = kedro(project / "below", "fetch", "weights", "resnet18").split()[-1]
    entry = loader(project / "conf", env="test")["catalog"]["backbone_weights"]
    assert Path(file) == project / entry["filepath"] / "resnet18.safetensors"
    assert Path(file).is_file()
    elsewhere = loader(project / "conf", runtime_params={"data_root": "other"})["catalog"]["backbone_weights"]
    assert elsewhere["filepath"] == entry["filepath"]


def test_unknown_environment_is_one_line_with_the_known_ones(conf):
    with pytest.raises(InputError, match="There is no environment 'papr': did you mean 'paper'"):
        loader(conf, env="papr")


def test_home_is_understood_in_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "parts").mkdir()
    assert input_path("~/parts", PROJECT) == tmp_path / "parts"
    assert output_path("~/out", PROJECT) == tmp_path / "out"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("known_class=007,n_seeds=3", {"known_class": "007", "n_seeds": 3}),
        ("name=2024", {"name": "2024"}),
        ("data_root=1e3/2", {"data_root": "1e3/2"}),
        ("category='008'", {"category": "008"}),
        ("images=null,training.epochs=2", {"images": None, "training": {"epochs": 2}}),
    ],
)
def test_numbers_typed_for_text_parameters_stay_text(typed, expected):
    assert cli.run.make_context("run", [f"--params={typed}"]).params["params"] == expected
