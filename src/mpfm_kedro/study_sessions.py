"""A study over several datasets: the comparison of each of them, one Kedro session after the other, then one report.

One session is one dataset: its parameters, its paths in the catalog and its lock. So a study has no engine of its own.
What was computed before, alone or by another study, is found by its key; an interrupted study is started again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from kedro.framework.session import KedroSession
from omegaconf import OmegaConf

from mpfm_kedro.atomic import replacing
from mpfm_kedro.configuration import project_loader, project_root
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
COLUMNS = ["name", "dataset", "category", "status", "images", "problem"]


@dataclass
class Comparison:
    """The comparison of one dataset: the parameters of its session, and how far it is."""

    name: str
    parameters: dict[str, Any]
    dataset: str
    category: str
    status: str
    images: int | None
    problem: str

    def as_record(self) -> dict[str, Any]:
        """Its row in the plan."""
        return {name: getattr(self, name) for name in COLUMNS}

    def __str__(self) -> str:
        counted = "" if self.images is None else f", {self.images:,} images"
        return f"{self.name}: {self.status}{counted}" + (f". {self.problem}" if self.problem else "")


def run_study(file: Path, given: dict[str, Any], env: str | None) -> None:
    """Run the comparison of every dataset of a study that is there, and report on all of them.

    Args:
        file: the study.
        given: further parameters, as they were typed.
        env: the environment.

    Raises:
        InputError: The file is wrong, or a comparison failed; then the others and the report are still made.
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
        for one in comparisons:
            if one.status == PLANNED:
                _compare(one, env)
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
    study = read_study(file)
    common = {name: value for name, value in given.items() if name != "study"}
    found: list[Comparison] = []
    for entry in study.datasets:
        merged: Any = OmegaConf.to_container(OmegaConf.merge(common, study.parameters_of(entry)))
        loader = project_loader(env, **merged)
        try:
            own = check_parameters(loader["parameters"])
            compared_methods(own.comparison)
        except InputError as error:
            raise InputError(f"{file}: datasets[{entry.dataset}]: {error}") from error
        if own.name in {one.name for one in found}:
            raise InputError(f"{file}: two datasets have the name '{own.name}': give one of them another 'name'")
        there = _look_for(entry.dataset, own.category, Path(own.data_root))
        found.append(Comparison(own.name, merged, entry.dataset, own.category, *there))
    return found


def _look_for(dataset: str, category: str, data_root: Path) -> tuple[str, int | None, str]:
    """Whether a dataset or category is there, how many images it has if they can be listed, and what to say of it."""
    source = get_source(dataset)
    there = describe(source, data_root)
    if there["status"] == MISSING and source is not synthetic.SOURCE:  # whose images are drawn when they are used
        return MISSING, None, str(there["problem"])
    if "normals" not in there:  # its images could not be listed
        return PLANNED, None, str(there["problem"])
    if category == "all":
        return PLANNED, there["normals"] + there["anomalies"], str(there["problem"])
    listed = source.list_samples(source.locate(data_root))["category"]
    if category not in (categories := sorted(listed.unique())):
        return MISSING, None, f"{there['folder']} has no category '{category}'; it has: {', '.join(categories)}"
    return PLANNED, int((listed == category).sum()), ""


def _compare(one: Comparison, env: str | None) -> None:
    """Run a comparison; an error is remembered, not raised: the other datasets do not depend on it."""
    logger.info("Study: comparison of %s", one.name)
    try:
        _run("comparison", one.parameters, env)
        one.status = DONE
    except Exception as error:
        if not isinstance(error, InputError):  # not the user's mistake
            logger.exception("%s has failed", one.name)
        else:
            logger.error("%s has failed: %s", one.name, error)
        one.status, one.problem = FAILED, " ".join(str(error).split())


def _write_plan(file: Path, comparisons: list[Comparison]) -> None:
    with replacing(file) as partial:
        pd.DataFrame([one.as_record() for one in comparisons]).convert_dtypes().to_csv(partial, index=False)
