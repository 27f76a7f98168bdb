"""The project as the benchmarks that need real features open it."""

from __future__ import annotations

import argparse
from typing import Any

from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from mpfm_kedro.configuration import project_root
from mpfm_kedro.parameters import ComputeParameters, Parameters, check_parameters


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
