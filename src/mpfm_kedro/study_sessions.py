"""A study over several datasets: the comparison of each of them, one Kedro session after the other, then one report.

One session is one dataset: its parameters, its paths in the catalog and its lock. So a study has no engine of its own.
What was computed before, alone or by another study, is found by its key; an interrupted study is started again.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from mpfm_kedro.configuration import project_loader
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.forecasting import Need, describe_need
from mpfm_kedro.experiments.specifications import compared_specifications
from mpfm_kedro.experiments.study_file import DECIDED, read_study
from mpfm_kedro.files import in_units, replacing
from mpfm_kedro.locks import Use, locked
from mpfm_kedro.parameters import check_parameters
from mpfm_kedro.pipelines.datasets.nodes import describe
from mpfm_kedro.progress import in_words
from mpfm_kedro.reports.study import DONE
from mpfm_kedro.sources import get_source, synthetic

logger = logging.getLogger(__name__)
MISSING, PLANNED, FAILED = "missing", "planned", "failed"
Run = Callable[[str, dict[str, Any]], object]


@dataclass
class Comparison:
    """The comparison of one dataset: the parameters of its session, and how far it is."""

    name: str
    parameters: dict[str, Any]
    dataset: str
    category: str
    need_file: Path
    status: str = PLANNED
    problem: str = ""
    need: Need | None = None

    def as_record(self) -> dict[str, Any]:
        """Its row in the plan."""
        about = {"name": self.name, "dataset": self.dataset, "category": self.category}
        about |= {"status": self.status, "problem": self.problem}
        return about | ({"hours": round(self.need.seconds / 3600, 3)} | self.need.as_record() if self.need else {})


def run_study(given: dict[str, Any], env: str | None, run: Run) -> None:
    """Run the comparison of every dataset of a study that is there, and report on all of them.

    Args:
        given: parameters as they were typed; ``study`` is the file.
        env: the environment.
        run: runs a pipeline with parameters, in a session of its own.

    Raises:
        InputError: The file is wrong, or a comparison failed; then the others and the report are done all the same.
    """
    if taken := [name for name in DECIDED if name in given]:
        raise InputError(f"Parameter '{taken[0]}' is decided by the study file: change it there")
    loader = project_loader(env, **given)
    parameters = check_parameters(loader["parameters"])
    comparisons = plan_comparisons(given, env, parameters.study)
    plan = Path(loader["catalog"]["study_plan"]["filepath"])
    with locked(Path(parameters.output_root), Use(f"study {parameters.name}", ["sessions"])):
        for one in comparisons:
            _forecast(one, run)
        _write_plan(plan, comparisons)
        logger.info("\n%s", describe_plan(parameters.name, comparisons, Path(parameters.output_root)))
        for one in comparisons:
            if one.status == PLANNED:
                _attempt(one, "comparison", run, DONE)
                _write_plan(plan, comparisons)
        if any(one.status == DONE for one in comparisons):
            run("study", given)
    if failed := [f"{one.name}: {one.problem}" for one in comparisons if one.status == FAILED]:
        raise InputError("\n".join([f"{len(failed)} of {len(comparisons)} comparisons failed:", *failed]))
    if all(one.status == MISSING for one in comparisons):
        raise InputError("No dataset of the study is there; kedro run --pipelines=datasets says where to get them")


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
            compared_specifications(own.prototypes, own.repairs, own.training, own.comparison, own.backbone)
        except InputError as error:
            raise InputError(f"{file}: datasets[{entry.dataset}]: {error}") from error
        if own.name in {one.name for one in found}:
            raise InputError(f"{file}: two datasets have the name '{own.name}': give one of them another 'name'")
        need_file = Path(loader["catalog"]["forecast.need"]["filepath"])
        status, problem = _look_for(entry.dataset, own.category, Path(own.data_root))
        found.append(Comparison(own.name, merged, entry.dataset, own.category, need_file, status, problem))
    return found


def _look_for(dataset: str, category: str, data_root: Path) -> tuple[str, str]:
    """Whether a dataset or category is there, and what is to be said of it."""
    source = get_source(dataset)
    there = describe(source, data_root)
    if there["status"] == MISSING and source is not synthetic.SOURCE:  # whose images are drawn when they are used
        return MISSING, str(there["problem"])
    if "normals" in there and category != "all":  # its images could be listed
        categories = sorted(source.list_samples(source.locate(data_root))["category"].unique())
        if category not in categories:
            return MISSING, f"{there['folder']} has no category '{category}'; it has: {', '.join(categories)}"
        return PLANNED, ""
    return PLANNED, str(there["problem"])


def describe_plan(name: str, comparisons: list[Comparison], output_root: Path) -> str:
    """What a study will do, dataset by dataset and in all."""
    lines = [f"Study {name}:"]
    for one in comparisons:
        unknown = f"{one.name}: {one.status}. {one.problem}"
        lines.append(f"  {describe_need(one.name, one.need) if one.need else unknown}")
    needs = [one.need for one in comparisons if one.need]
    if needs:
        disk, memory = sum(need.disk_bytes for need in needs), max(need.memory_bytes for need in needs)
        output_root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(output_root).free
        lines.append(
            f"  in all: {sum(need.trials for need in needs):,} trials, {sum(need.images for need in needs):,} images, "
            f"about {in_words(sum(need.seconds for need in needs))}, {in_units(disk)} of disk "
            f"({in_units(free)} are free), {memory / 1e9:.1f} GB of memory at once "
            f"(limit {min(need.memory_limit for need in needs) / 1e9:.1f} GB)"
        )
        if disk > free:
            lines.append(f"  The disk of {output_root} is too small for this: free some, or choose another output_root")
        if not all(need.measured for need in needs):
            lines.append("  Nothing was fitted on this machine before: its times are those of another one")
    return "\n".join(lines)


def _forecast(one: Comparison, run: Run) -> None:
    """Ask what a comparison needs; a dataset whose images cannot be used has failed."""
    if one.status != PLANNED:
        return
    _attempt(one, "forecast", run, PLANNED)
    if one.status == PLANNED:
        one.need = Need.read(one.need_file)


def _attempt(one: Comparison, pipeline: str, run: Run, reached: str) -> None:
    """Run a pipeline; an error is remembered, not raised: the other datasets do not depend on it."""
    logger.info("Study: %s of %s", pipeline, one.name)
    try:
        run(pipeline, one.parameters)
        one.status = reached
    except Exception as error:
        if not isinstance(error, InputError):  # not the user's mistake
            logger.exception("%s has failed", one.name)
        else:
            logger.error("%s has failed: %s", one.name, error)
        one.status, one.problem = FAILED, " ".join(str(error).split())


def _write_plan(file: Path, comparisons: list[Comparison]) -> None:
    with replacing(file) as partial:
        pd.DataFrame([one.as_record() for one in comparisons]).convert_dtypes().to_csv(partial, index=False)
