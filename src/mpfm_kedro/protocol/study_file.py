"""The study file: which datasets are compared, in which settings, with which M, seeds and methods."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import ComparisonParameters, SettingParameters
from mpfm_kedro.sources import SOURCES

SETTINGS, COMPARED = ("general", "hard"), tuple(ComparisonParameters.model_fields)
OF_DATASET, OF_ALL = ("dataset", "name", "category", "data_root"), ("known_class", "n_seeds", "first_seed")
DECIDED = ("dataset", "name", "category", "known_class", "n_anomalies", "n_seeds", "first_seed", "comparison")
ROOTS = ("data_root", "output_root", "study")
EXAMPLE = "such as conf/studies/small.yml"


def read_study(path: str | None) -> list[dict[str, Any]]:
    """The parameters of the comparison of each dataset of a study file; their values are not checked here.

    What is said of a setting takes precedence over what is said of all settings, and the dataset over the study.
    """
    if path is None:
        raise InputError(f"Parameter 'study' is missing: kedro study FILE, {EXAMPLE}")
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Parameter 'study' = '{path}': the file cannot be read ({error})") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    study = _covered(content, f"{path}: ", (*COMPARED, *OF_ALL, "parameters", "datasets"))
    entries = study.pop("datasets", None)
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path}: datasets = {entries!r:.60}: should be a list of at least 1 item, {EXAMPLE}")
    comparisons = []
    for number, entry in enumerate(entries):
        named = {"dataset": entry} if isinstance(entry, str) else entry
        title = named.get("name") or named.get("dataset") or number if isinstance(named, dict) else number
        where = f"{path}: datasets[{title}]."
        special = _covered(named, where, (*OF_DATASET, *COMPARED, *OF_ALL, "parameters"))
        if special.get("dataset") not in [*SOURCES]:
            known = ", ".join(sorted(SOURCES))
            raise InputError(f"{where}dataset = {special.get('dataset')!r:.60}: should be one of {known}")
        comparisons.append(_parameters(study, special))
    return comparisons


def _covered(content: Any, where: str, allowed: Collection[str]) -> dict[str, Any]:
    """What is said of the whole study or of a dataset, with all groups; None leaves a key to the whole study."""
    covered = {name: value for name, value in _mapping(content, where, allowed).items() if value is not None}
    for group in (*SETTINGS, "parameters"):
        names = None if group == "parameters" else SettingParameters.model_fields
        covered[group] = _mapping(covered.get(group, {}), f"{where}{group}.", names)
    if taken := [name for name in covered["parameters"] if name in (*DECIDED, *ROOTS)]:
        problem = "has its own place in the file, or comes from the command line"
        raise InputError(f"{where}parameters = {covered['parameters']!r}: {', '.join(taken)}: {problem}")
    return covered


def _mapping(content: Any, where: str, allowed: Collection[str] | None) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise InputError(f"{where.strip('. ')}: should have keys and values, {EXAMPLE}; found {content!r:.60}")
    if unknown := [name for name in content if allowed is not None and name not in allowed]:
        raise InputError(f"{where}{unknown[0]}: unknown key {unknown[0]}; allowed are {', '.join(allowed or [])}")
    return content


def _parameters(study: dict[str, Any], special: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the comparison of one dataset."""
    groups = {group: study[group] | special[group] for group in (*SETTINGS, "parameters")}
    covered = {"name": "auto", "category": "all"} | study | special | groups
    chosen = {name: covered[name] for name in (*OF_DATASET, *OF_ALL) if name in covered}
    return groups["parameters"] | chosen | {"comparison": {n: covered[n] for n in COMPARED if n in covered}}
