"""A parameter named in the catalog is the one of this run: its environment, then what was typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mpfm_kedro.configuration import ProjectConfigLoader


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
    arguments = {"base_env": "base", "default_run_env": "local", "merge_strategy": {"parameters": "soft"}}
    return ProjectConfigLoader(str(conf), **(arguments | options))


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


def test_further_resolvers_are_kept(conf):
    (conf / "base" / "catalog.yml").write_text("table: {filepath: '${twice:ab}/${param:dataset}'}")
    assert path(loader(conf, custom_resolvers={"twice": lambda text: text * 2})) == "abab/elpv"


def test_unknown_parameter_in_the_catalog_is_an_error(conf):
    (conf / "base" / "catalog.yml").write_text("table: {filepath: '${param:nonsense}'}")
    with pytest.raises(Exception, match="nonsense"):
        path(loader(conf))


def test_project_s_own_catalog_follows_the_dataset():
    conf = Path(__file__).parents[1] / "conf"
    catalog = loader(conf, runtime_params={"dataset": "brainmri", "output_root": "elsewhere"})["catalog"]
    assert catalog["samples"]["filepath"].startswith("elsewhere/")
    assert "/brainmri/" in catalog["samples"]["filepath"]
    assert catalog["images"]["dataset"] == "brainmri"
