"""The project as the benchmarks that need real features open it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.configuration import project_root
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.parameter_checks import check_parameters
from mpfm_kedro.parameters import ComputeParameters, Parameters
from mpfm_kedro.pipelines.mpfm import calibrate_scores, initialise_prototypes, train_mpfm
from mpfm_kedro.protocol.memory import Memory
from mpfm_kedro.protocol.methods import Method, rows_of_mpfm, to_json
from mpfm_kedro.protocol.scores import plan_scores
from mpfm_kedro.protocol.trials import Trials

MPFM, _, UNTRAINED = rows_of_mpfm()


def parser(description: str) -> argparse.ArgumentParser:
    """Arguments that all of these benchmarks have."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("dataset")
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--processes", type=int, default=0)
    arguments.add_argument("--data-root", default="data/01_raw", help="where the images are")
    arguments.add_argument("--output-root", default="data", help="where kedro run --pipelines=features has written to")
    return arguments


def open_project(given: argparse.Namespace, *names: str) -> tuple[Parameters, ComputeParameters, list[Any]]:
    """Parameters for a dataset, how to compute with them, and what these names of the catalog hold."""
    bootstrap_project(project_root())
    chosen = {"dataset": given.dataset, "data_root": given.data_root, "output_root": given.output_root}
    with KedroSession.create(project_root(), runtime_params=chosen) as session:
        context = session.load_context()
        parameters = check_parameters(context.config_loader["parameters"])
        loaded = [context.catalog.load(name) for name in names]
    return parameters, parameters.compute.model_copy(update={"processes": given.processes}), loaded


def fit_mpfm(
    runs: pd.DataFrame,
    features: Features,
    parameters: Parameters,
    compute: ComputeParameters,
    methods: Sequence[Method] = (MPFM,),
) -> tuple[Trials, Memory]:
    """MPFM or variants of it on all runs, with the memory of the dataset; what is there is not fitted again."""
    memory = Memory(Path(parameters.output_root) / "06_models" / parameters.name)
    prototypes, training, repairs = parameters.prototypes, parameters.training, parameters.repairs
    own = runs.assign(methods=to_json(methods))
    trials = Trials(initialise_prototypes(own, features, prototypes, repairs, compute).run(memory), memory)
    for stage in (train_mpfm, calibrate_scores):
        trials = Trials(stage(trials, features, training, repairs, compute).run(memory), memory)
    return trials, memory


def score_mpfm(
    runs: pd.DataFrame,
    samples: pd.DataFrame,
    features: Features,
    images: ImageLoader,
    parameters: Parameters,
    compute: ComputeParameters,
    methods: Sequence[Method] = (MPFM,),
) -> pd.DataFrame:
    """Scores of the test samples of all runs by MPFM or variants of it."""
    trials, memory = fit_mpfm(runs, features, parameters, compute, methods)
    scores, _, _ = plan_scores(list(trials), features, samples, images, compute)
    return scores.run(memory)
