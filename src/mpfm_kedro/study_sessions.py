"""A study over several datasets: the comparison of each of them, one Kedro session after the other, then one report.

One session is one dataset: its parameters, its paths in the catalog and its lock. So a study has no engine of its own.
What was computed before, alone or by another study, is found by its key; an interrupted study is started again.
"""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from kedro.framework.session import KedroSession
from omegaconf import OmegaConf

from mpfm_kedro.configuration import project_loader, project_root
from mpfm_kedro.datasets.files import write_file
from mpfm_kedro.errors import InputError
from mpfm_kedro.locks import Use, locked
from mpfm_kedro.parameter_checks import check_parameters
from mpfm_kedro.pipelines.datasets import describe
from mpfm_kedro.protocol.methods import compared_methods
from mpfm_kedro.protocol.study_file import DECIDED, read_study
from mpfm_kedro.reports.study import DONE
from mpfm_kedro.sources import get_source, synthetic

logger = logging.getLogger(__name__)
MISSING, PLANNED, FAILED = "missing", "planned", "failed"


@dataclass
class Comparison:
    """The comparison of one dataset, a row of the plan, and the parameters of its session."""

    name: str
    dataset: str
    category: str
    status: str
    images: int | None
    problem: str
    parameters: dict[str, Any]

    def __str__(self) -> str:
        counted = "" if self.images is None else f", {self.images:,} images"
        return f"{self.name}: {self.status}{counted}" + (f". {self.problem}" if self.problem else "")


def run_study(file: Path, given: dict[str, Any], env: str | None) -> None:
    """Run the comparison of every dataset of a study that is there, and report on all of them.

    If one fails, the others and the report are still made; then an error names it.
    """
    if taken := [name for name in DECIDED if name in given]:
        raise InputError(f"Parameter '{taken[0]}' is decided by the study file: change it there")
    given = given | {"study": str(file)}
    loader = project_loader(env, **given)
    parameters = check_parameters(loader["parameters"])
    comparisons = plan_comparisons(given, env, parameters.study)
    plan = Path(loader["catalog"]["study_plan"]["filepath"])
    with locked(Path(parameters.output_root), Use(f"study {parameters.name}", ["sessions"])):
        _write_plan(plan, comparisons)
        logger.info("\n%s", "\n  ".join([f"Study {parameters.name}:", *map(str, comparisons)]))
        for comparison in comparisons:
            if comparison.status == PLANNED:
                _compare(comparison, env)
                _write_plan(plan, comparisons)
        if any(one.status == DONE for one in comparisons):
            _run("study", given, env)
    if failed := [f"{one.name}: {one.problem}" for one in comparisons if one.status == FAILED]:
        raise InputError("\n".join([f"{len(failed)} of {len(comparisons)} comparisons failed:", *failed]))
    if all(one.status == MISSING for one in comparisons):
        raise InputError("No dataset of the study is there; kedro run --pipelines=datasets says where to get them")


def _run(pipeline: str, parameters: dict[str, Any], env: str | None) -> None:
    """Run a pipeline in a session of its own."""
    session = KedroSession.create(project_root(), env=env, runtime_params=parameters)
    with session:
        session.run(pipeline_names=[pipeline])


def plan_comparisons(given: dict[str, Any], env: str | None, file: str | None) -> list[Comparison]:
    """The comparisons of a study file, whose parameters are checked before anything runs."""
    common = {name: value for name, value in given.items() if name != "study"}
    comparisons: dict[str, Comparison] = {}
    for compared in read_study(file):
        dataset = str(compared["dataset"])
        merged: Any = OmegaConf.to_container(OmegaConf.merge(common, compared))
        loader = project_loader(env, **merged)
        try:
            parameters = check_parameters(loader["parameters"])
            compared_methods(parameters.comparison)
        except InputError as error:
            raise InputError(f"{file}: datasets[{dataset}]: {error}") from error
        name, category = parameters.name, parameters.category
        if name in comparisons:
            raise InputError(f"{file}: two datasets have the name '{name}': give one of them another 'name'")
        state = _look_for(dataset, category, Path(parameters.data_root))
        comparisons[name] = Comparison(name, dataset, category, *state, merged)
    return list(comparisons.values())


def _look_for(dataset: str, category: str, data_root: Path) -> tuple[str, int | None, str]:
    """Whether a dataset or category is there, how many images it has if they can be listed, and what to say of it."""
    source = get_source(dataset)
    there = describe(source, data_root)
    problem = str(there["problem"])
    if there["status"] == MISSING and source is not synthetic.SOURCE:  # whose images are drawn when they are used
        return MISSING, None, problem
    if "normals" not in there:  # its images could not be listed
        return PLANNED, None, problem
    if category == "all":
        return PLANNED, there["normals"] + there["anomalies"], problem
    categories = source.list_samples(source.locate(data_root))["category"].value_counts()
    if category not in categories:
        known = ", ".join(sorted(categories.index))
        return MISSING, None, f"{there['folder']} has no category '{category}'; it has: {known}"
    return PLANNED, int(categories[category]), ""


def _compare(comparison: Comparison, env: str | None) -> None:
    """Run a comparison; an error is remembered, not raised: the other datasets do not depend on it."""
    logger.info("Study: comparison of %s", comparison.name)
    try:
        _run("comparison", comparison.parameters, env)
        comparison.status = DONE
    except Exception as error:
        unexpected = not isinstance(error, InputError)  # not the user's mistake
        logger.error("%s has failed: %s", comparison.name, error, exc_info=unexpected)
        comparison.status, comparison.problem = FAILED, " ".join(str(error).split())


def _write_plan(file: Path, comparisons: list[Comparison]) -> None:
    write_file(pd.DataFrame(map(asdict, comparisons)).drop(columns="parameters").convert_dtypes(), file)
