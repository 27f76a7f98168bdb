"""What happens around every run: checks and locks before it, clear errors, and a summary at its end."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.framework.project import LOGGING, pipelines
from kedro.io import DataCatalog
from kedro.pipeline import Pipeline
from kedro.pipeline.node import Node

from mpfm_kedro.compute import torch_device
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.finding import find_images
from mpfm_kedro.inspection.model import read_card
from mpfm_kedro.locks import Use, dotted, locked, table_parameters
from mpfm_kedro.parameter_checks import check_parameters
from mpfm_kedro.parameters import COPIES
from mpfm_kedro.sources import SOURCES

logger = logging.getLogger(__name__)
STUDIES = {"general", "hard", "comparison", "ablation", "sensitivity", "study", "production", "learning"}
STUDIES |= {"predictions", "export", "datasets"}
IN_BF16 = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"
LOCATING = {"dataset", "name", "data_root", "output_root"}  # parameters that every node reads, by the catalog
NEEDED = {"predict_images": ["images"], "add_images": ["images", "label"]}  # parameters that have no default
TITLES = {
    "report": "Report",
    "card": "Card",
    "summary": "Table",
    "evaluation": "Tables",
    "changes": "Changed predictions",
    "production_model": "Model",
    "models": "Models",
}


class ProjectHooks:
    """Refuse what cannot run or would be ignored, keep runs apart, and show what a run found."""

    def __init__(self) -> None:
        self._project = Path()
        self._parameters: dict[str, Any] = {}
        self._held = ExitStack()

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Configure logging from any folder (Kedro looks in the current one alone), and check all parameters."""
        file = context.project_path / "conf/logging.yml"
        if file.is_file() and "KEDRO_LOGGING_CONFIG" not in os.environ and not Path("conf/logging.yml").is_file():
            LOGGING.configure(yaml.safe_load(file.read_text(encoding="utf-8")))
        self._project, self._parameters = context.project_path, context.config_loader["parameters"]
        parameters = check_parameters(self._parameters)
        if parameters.name in set(SOURCES) - {parameters.dataset}:
            raise InputError(
                f"Parameter 'name' = '{parameters.name}': this is another dataset; choose a name of your own"
            )

    @hook_impl
    def before_pipeline_run(self, run_params: dict[str, Any], pipeline: Pipeline, catalog: DataCatalog) -> None:
        """Check what the run is given and will need, then lock what it uses."""
        names = run_params.get("pipeline_names") or ["__default__"]
        whole = sum((pipelines[name] for name in names), Pipeline([]))
        refuse_ignored_parameters(run_params.get("runtime_params") or {}, pipeline, whole)
        refuse_ignored_versions(run_params.get("load_versions") or {}, pipeline, catalog)
        check_inputs(self._parameters, pipeline, catalog)
        if any(node.name.endswith("extract_features") for node in pipeline.nodes):
            check_extraction(self._parameters, catalog)
        self.lock(pipeline)

    def lock(self, pipeline: Pipeline) -> None:
        """Hold what a pipeline uses, in place of what an interrupted run of this process may still hold."""
        self._held.close()
        studies, tables = used_results(pipeline)
        if studies or tables:
            decisive = table_parameters(self._parameters, self._project) if tables else None
            use = Use(self._parameters["name"], sorted(studies), decisive)
            self._held.enter_context(locked(self._project / self._parameters["output_root"], use))

    @hook_impl(trylast=True)
    def after_pipeline_run(self, pipeline: Pipeline, catalog: DataCatalog) -> None:
        """Log each summary text among the outputs, and the paths of report, table and models; then release."""
        outputs = sorted(pipeline.all_outputs())
        for name in outputs:
            if name.endswith("summary_text"):
                logger.info("\n%s", catalog.load(name))
        for last, title in TITLES.items():
            for name in outputs:
                if last in (name, name.partition("_")[2]) and not (last == "models" and "production_model" in outputs):
                    logger.info("%s: %s", title, catalog.config_resolver.resolve_pattern(name).get("filepath"))
        self._held.close()

    @hook_impl(tryfirst=True)
    def on_pipeline_error(self, error: Exception) -> None:
        """Release, and re-raise the InputError behind a wrapped error."""
        self._held.close()
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, InputError):
            cause = cause.__cause__
        if cause is not None and cause is not error:
            raise cause


def refuse_ignored_parameters(given: dict[str, Any], pipeline: Pipeline, whole: Pipeline) -> None:
    """Refuse given parameters that are read only by nodes which a partial run excludes."""
    for name in dotted({name: given[name] for name in given if name not in LOCATING}):
        readers = [node for node in whole.nodes if reads_parameter(node, name)]
        if readers and not any(reads_parameter(node, name) for node in pipeline.nodes):
            raise InputError(
                f"Parameter '{name}' is read by {readers[0].name}, which this partial run excludes: it would have no "
                "effect. Run that node, too, or do not set the parameter"
            )


def refuse_ignored_versions(versions: dict[str, str], pipeline: Pipeline, catalog: DataCatalog) -> None:
    """Refuse --load-versions of datasets that have none."""
    for name in versions:
        if name in pipeline.datasets() and not catalog.config_resolver.resolve_pattern(name).get("versioned"):
            raise InputError(
                f"--load-versions={name}: this dataset is not versioned, so its version would have no effect. "
                "`kedro versions list` shows the versions that are kept, `kedro versions use` restores one"
            )


def reads_parameter(node: Node, name: str) -> bool:
    """Whether a node reads this parameter, alone, with others of its group, or copied into a group."""
    names = [name, *(target for target, source in COPIES.items() if source == name)]
    groups = [item.removeprefix("params:") for item in node.inputs if item.startswith("params:")]
    return any(f"{name}.".startswith(f"{group}.") or group.startswith(f"{name}.") for group in groups for name in names)


def check_inputs(parameters: dict[str, Any], pipeline: Pipeline, catalog: DataCatalog) -> None:
    """Refuse a missing path, model or data folder before slow imports and before other work."""
    for node in pipeline.nodes:
        needed = NEEDED.get(node.name, [])
        if missing := [name for name in needed if parameters[name] is None]:
            examples = {"images": "images=PATH", "label": "label=anomaly (or normal)"}
            typed = ",".join(examples[name] for name in needed)
            raise InputError(
                f"Parameter '{missing[0]}' is missing: --params={typed}; images is a file, folder or pattern"
            )
    inputs = pipeline.inputs()
    if "params:images" in inputs and parameters["images"] is not None:
        find_images(parameters["images"])
    for name in sorted(inputs & {"production_model", "model_before"}):
        read_card(Path(catalog.config_resolver.resolve_pattern(name)["filepath"]))
    if "images" in inputs:
        catalog["images"].load()  # unlike catalog.load, this passes our own errors on


def check_extraction(parameters: dict[str, Any], catalog: DataCatalog) -> None:
    """Refuse a device, a backbone or a weights file that cannot be used before hours of other work."""
    features = parameters["features"]
    file = features["weights_file"]
    if file is not None and not Path(file).is_file():
        raise InputError(f"Parameter 'features.weights_file' = '{file}': there is no such file")
    device = torch_device(parameters["device"])
    if device.type == "cpu" and features["precision"] == "bf16":
        # some virtual machines claim AMX, and end a process that uses it
        tried = subprocess.run([sys.executable, "-c", IN_BF16], capture_output=True, check=False)
        if tried.returncode:
            raise InputError(
                f"Parameter 'features.precision' = 'bf16': bf16 crashes on this CPU (exit code {tried.returncode}); "
                "use fp32, or set the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 and start again"
            )
    from mpfm_kedro.backbones.networks import check_name  # with torch, which is slow to import

    names = parameters["backbone"]
    for name in [names] if isinstance(names, str) else names:
        check_name(name)
    if file is not None:
        catalog["backbone_weights"].load()


def used_results(pipeline: Pipeline) -> tuple[set[str], set[str]]:
    """Studies whose results a pipeline writes, and the shared tables that it reads or writes.

    The results of a study are named ``<study>_<name>``; all others are shared.
    """
    studies = {name.split("_")[0] for name in pipeline.all_outputs()} & STUDIES
    plain = {name for name in pipeline.datasets() if not name.startswith("param") and name.split("_")[0] not in STUDIES}
    return studies, plain
