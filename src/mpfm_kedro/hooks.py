"""Hooks: parameters are checked and results locked before a run, errors are clear, the summary is shown at the end."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import yaml
from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.framework.project import LOGGING, pipelines
from kedro.io import CatalogProtocol
from kedro.pipeline import Pipeline
from kedro.pipeline.node import Node

from mpfm_kedro.configuration import LAST_RUN, ProjectConfigLoader
from mpfm_kedro.errors import InputError
from mpfm_kedro.files import replacing
from mpfm_kedro.locks import Use, locked, table_parameters
from mpfm_kedro.parallel import torch_device
from mpfm_kedro.parameters import check_parameters
from mpfm_kedro.sources import SOURCES

logger = logging.getLogger(__name__)
IN_BF16 = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


class ClearErrors:
    """Let the user's mistake speak, not the machinery that wrapped it on the way up."""

    @hook_impl
    def on_pipeline_error(self, error: Exception) -> None:
        """Raise the InputError that an error was caused by."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, InputError):
            cause = cause.__cause__
        if cause is not None and cause is not error:
            raise cause


class ProjectLogging:
    """Log as the project's ``conf/logging.yml`` says from any folder; Kedro looks for it in the current one alone."""

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Configure logging unless Kedro has found a configuration."""
        file = context.project_path / "conf/logging.yml"
        found = "KEDRO_LOGGING_CONFIG" in os.environ or Path("conf/logging.yml").is_file()
        if file.is_file() and not found:
            LOGGING.configure(yaml.safe_load(file.read_text(encoding="utf-8")))


class CheckParameters:
    """Refuse unknown parameters and wrong types before any node runs."""

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Check the parameters of this run."""
        parameters = check_parameters(context.config_loader["parameters"])
        if parameters.name in set(SOURCES) - {parameters.dataset}:
            raise InputError(
                f"Parameter 'name' = '{parameters.name}': this is another dataset; choose a name of your own"
            )


class CheckPartialRun:
    """Refuse what a partial run would ignore: parameters of nodes that do not run, versions of unversioned datasets."""

    def __init__(self) -> None:
        self._context: KedroContext | None = None

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Remember where the parameters of the coming run are."""
        self._context = context

    @hook_impl
    def before_pipeline_run(self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Compare what was given on the command line with what the nodes of this run read.

        A parameter that the run before this one had, too, is no surprise: stages may run one by one with the same ones.
        """
        assert self._context is not None
        loader = cast(ProjectConfigLoader, self._context.config_loader)
        before = (loader.last_run() or {}).get("parameters", {})
        given = run_params.get("runtime_params") or {}
        new = {name: given[name] for name in given if loader["parameters"].get(name) != before.get(name)}
        run = {node.namespace for node in pipeline.nodes if node.namespace}
        whole = sum((pipelines[name] for name in run_params.get("pipeline_names") or ["__default__"]), Pipeline([]))
        for name in parameter_names(new):
            readers = [node for node in whole.nodes if reads_parameter(node, name)]
            if readers and not any(reads_parameter(node, name) for node in pipeline.nodes):
                needed = ",".join(sorted(run | {str(readers[0].namespace)}))
                raise InputError(
                    f"Parameter '{name}' is read by {readers[0].name}, which this partial run leaves out: it would "
                    f"have no effect. Run that node, too: --namespaces={needed}"
                )
        for name in run_params.get("load_versions") or {}:
            if name in pipeline.datasets() and getattr(catalog.get(name), "_version", None) is None:
                raise InputError(
                    f"--load-versions={name}: this dataset is not versioned, so its version would have no effect. "
                    "`kedro versions list` shows the versions that are kept, `kedro versions use` restores one"
                )


def parameter_names(parameters: dict[str, Any], prefix: str = "") -> list[str]:
    """The dotted names of given parameters."""
    found = []
    for name, value in parameters.items():
        found += parameter_names(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"]
    return found


def reads_parameter(node: Node, name: str) -> bool:
    """Whether a node reads this parameter, alone or with others of its group."""
    own = {item.removeprefix("params:") for item in node.inputs if item.startswith("params:")}
    return any(f"{name}.".startswith(f"{group}.") or group.startswith(f"{name}.") for group in own)


class CheckFiles:
    """Refuse a device, a backbone or a weights file that cannot be used before hours of other work."""

    def __init__(self) -> None:
        self._context: KedroContext | None = None

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Remember where the parameters of the coming run are."""
        self._context = context

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Check what the extraction of features will need; a weights file of the user's own is read and compared."""
        if not any(node.name.endswith("extract_features") for node in pipeline.nodes):
            return
        assert self._context is not None
        parameters = self._context.config_loader["parameters"]
        device = torch_device(parameters["device"])
        if device.type == "cpu" and parameters["features"]["precision"] == "bf16":
            try_bf16("features.precision")
        from mpfm_kedro.backbones.networks import check_name  # with torch, which is slow to import

        names = parameters["backbone"]
        for name in [names] if isinstance(names, str) else names:
            check_name(name)
        file = parameters["features"]["weights_file"]
        if file is not None and not Path(file).is_file():
            raise InputError(f"Parameter 'features.weights_file' = '{file}': there is no such file")
        if file is not None:
            catalog["backbone_weights"].load()  # unlike catalog.load, this passes our own words on


def try_bf16(name: str) -> None:
    """Raise where this CPU cannot compute in bf16: some virtual machines claim AMX, and end a process that uses it."""
    tried = subprocess.run([sys.executable, "-c", IN_BF16], capture_output=True, check=False)
    if tried.returncode:
        raise InputError(
            f"Parameter '{name}' = 'bf16': a process that computes in bf16 ends with code {tried.returncode} on this "
            "CPU; use fp32, or set the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 and start again"
        )


class RunLocks:
    """Refuse a run whose files would mix with those of another one in the same output folder."""

    def __init__(self) -> None:
        self._context: KedroContext | None = None
        self._held = ExitStack()

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Remember where the parameters of the coming run are."""
        self._context = context

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline) -> None:
        """Lock what the pipeline uses; an interrupted run of this process may still hold its own."""
        self._held.close()
        assert self._context is not None
        project, parameters = self._context.project_path, self._context.config_loader["parameters"]
        studies, tables = used_results(pipeline)
        if studies or tables:
            decisive = table_parameters(parameters, project) if tables else None
            use = Use(parameters["name"], sorted(studies), decisive)
            self._held.enter_context(locked(project / parameters["output_root"], use))

    @hook_impl(trylast=True)
    def after_pipeline_run(self) -> None:
        """Release after all other hooks, which still read results."""
        self._held.close()

    @hook_impl(tryfirst=True)
    def on_pipeline_error(self) -> None:
        """Release before another hook raises."""
        self._held.close()


def used_results(pipeline: Pipeline) -> tuple[set[str], set[str]]:
    """Studies whose results a pipeline writes, and the shared tables that it reads or writes.

    The results of a study are named ``<study>.<name>``, or as the study itself; all others are shared.
    """
    studies = {name.split(".")[0] for name in pipeline.all_outputs() if "." in name}
    plain = {name for name in pipeline.datasets() if "." not in name and not name.startswith("param")}
    return studies, plain - studies


class RememberRun:
    """Write down what runs, so that kedro-viz shows its dataset and pipeline."""

    def __init__(self) -> None:
        self._context: KedroContext | None = None

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Remember where the parameters of the coming run are."""
        self._context = context

    @hook_impl(trylast=True)
    def before_pipeline_run(self, run_params: dict[str, Any]) -> None:
        """Write pipeline, environment and given parameters into the output folder, after all checks."""
        assert self._context is not None
        parameters = self._context.config_loader["parameters"]
        names = run_params.get("pipeline_names") or ["hard_setting"]
        given = {name: parameters[name] for name in run_params.get("runtime_params") or {}}
        last = {"pipeline": names[0], "env": run_params.get("env"), "parameters": given}
        with replacing(Path(parameters["output_root"], LAST_RUN)) as partial:
            partial.write_text(json.dumps(last, indent=1), encoding="utf-8")


class ShowSummary:
    """Show on the terminal what a pipeline found, and where its files are."""

    @hook_impl
    def after_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol, run_params: Any) -> None:
        """Log each summary text among the outputs, and the paths of report, table and models."""
        for name in sorted(pipeline.all_outputs()):
            if name.split(".")[-1] == "summary_text":
                logger.info("\n%s", catalog.load(name))
        model = "production_model" in pipeline.all_outputs()  # the fitted pieces are in it
        titles = {"report": "Report", "card": "Card", "summary": "Table", "compared": "Changed predictions"}
        titles |= {"production_model": "Model"} if model else {"models": "Models"}
        for last, title in titles.items():
            for name in sorted(pipeline.all_outputs()):
                if name.split(".")[-1] == last:
                    logger.info("%s: %s", title, catalog[name]._filepath)
