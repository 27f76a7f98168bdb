"""The study file: which datasets are compared, in which settings, with which M, seeds and methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import Count, Group, Methods, Numbers, Setting, SettingParameters
from mpfm_kedro.sources import SOURCES

DECIDED = ("dataset", "name", "category", "known_class", "n_anomalies", "n_seeds", "first_seed", "comparison")
ROOTS = ("data_root", "output_root", "study")
EXAMPLE = "such as conf/studies/small.yml"


def _known_dataset(name: str) -> str:
    if name not in SOURCES:
        raise ValueError(f"should be one of {', '.join(sorted(SOURCES))}")
    return name


def _in_mapping(value: Any) -> Any:
    return {"dataset": value} if isinstance(value, str) else value


def _not_decided(parameters: dict[str, Any]) -> dict[str, Any]:
    if taken := [name for name in parameters if name in (*DECIDED, *ROOTS)]:
        raise ValueError(f"{', '.join(taken)}: has its own place in the file, or comes from the command line")
    return parameters


class Covered(Group):
    """What is compared; None leaves it to the whole study."""

    settings: Annotated[list[Setting], Field(min_length=1)] | None = None
    n_anomalies: Numbers | None = None
    n_seeds: Count | None = None
    first_seed: Annotated[int, Field(ge=0)] | None = None
    methods: Methods | None = None
    steps: Annotated[int, Field(ge=0)] | None = None
    known_class: str | None = None
    general: SettingParameters = SettingParameters()
    hard: SettingParameters = SettingParameters()
    parameters: Annotated[dict[str, Any], AfterValidator(_not_decided)] = Field(default_factory=dict)


class Entry(Covered):
    """One dataset of a study, with what is special about it."""

    dataset: Annotated[str, AfterValidator(_known_dataset)]
    name: str = "auto"
    category: str = "all"
    data_root: str | None = None


class Study(Covered):
    """A study: what all datasets share, and the datasets."""

    datasets: Annotated[list[Annotated[Entry, BeforeValidator(_in_mapping)]], Field(min_length=1)]

    def parameters_of(self, entry: Entry) -> dict[str, Any]:
        """The parameters of the comparison of one dataset.

        What is said of a setting takes precedence over what is said of all settings, and the dataset over the study.
        """
        own, whole = (covered.model_dump(exclude_none=True) for covered in (entry, self))
        covered = whole | own
        compared: dict[str, Any] = {
            name: covered[name] for name in ("settings", "n_anomalies", "methods", "steps") if name in covered
        }
        compared |= {setting: whole[setting] | own[setting] for setting in ("general", "hard")}
        named = ("dataset", "name", "category", "data_root", "known_class", "n_seeds", "first_seed")
        chosen = {name: covered[name] for name in named if name in covered}
        return whole["parameters"] | own["parameters"] | chosen | {"comparison": compared}


def read_study(path: str | None) -> Study:
    """The study of a file; an error names the file, the key, its value and what is allowed."""
    if path is None:
        raise InputError(f"Parameter 'study' is missing: kedro study FILE, {EXAMPLE}")
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Parameter 'study' = '{path}': the file cannot be read ({error})") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: a study file has keys and values, {EXAMPLE}; found {content!r:.60}")
    try:
        return Study.model_validate(content)
    except ValidationError as error:
        lines = [f"{path}: {_explain(problem, content)}" for problem in error.errors()]
        raise InputError("\n".join(lines)) from None


def _explain(problem: Any, content: dict[str, Any]) -> str:
    """A problem in words: the key, its value, what is allowed."""
    location = list(problem["loc"])
    key = _key(location, content)
    if problem["type"] == "extra_forbidden":
        group = Entry if location[0] == "datasets" else Study
        inner = location[-2] if len(location) > 1 else None
        allowed = SettingParameters if inner in ("general", "hard") else group
        return f"unknown key {key}; allowed are {', '.join(allowed.model_fields)}"
    if problem["type"] == "missing":
        return f"{key} is missing"
    return f"{key} = {problem['input']!r}: {problem['msg'].removeprefix('Value error, ')}"


def _key(location: list[Any], content: dict[str, Any]) -> str:
    """The place of a key as people find it: ``datasets[screw].hard.n_seeds``."""
    if location[0] != "datasets" or len(location) == 1:
        return ".".join(str(part) for part in location)
    _, place, *rest = location
    entry = _in_mapping(content["datasets"][place])
    known = entry if isinstance(entry, dict) else {}
    title = known.get("name") or known.get("dataset") or place
    return ".".join([f"datasets[{title}]", *(str(part) for part in rest)])
