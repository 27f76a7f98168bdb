"""Commands of the project beside Kedro's own."""

from __future__ import annotations

import copy
import difflib
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from kedro.framework.cli.project import run as kedro_run
from kedro.framework.cli.utils import _split_params
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from mpfm_kedro.app.learning import Project
from mpfm_kedro.app.starting import OPTIONS, serve
from mpfm_kedro.backbones.store import FeatureStore
from mpfm_kedro.configuration import input_path, output_path, project_loader, project_root
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.protocol import PRODUCTION
from mpfm_kedro.experiments.versions import check_version, find_version, list_versions
from mpfm_kedro.locks import Use, locked
from mpfm_kedro.parameters import text_parameters
from mpfm_kedro.pipeline_registry import register_pipelines
from mpfm_kedro.sources import SOURCES
from mpfm_kedro.sources.fetching import fetch as fetch_images
from mpfm_kedro.sources.repeats import joined_groups
from mpfm_kedro.study_sessions import run_study


def _root(name: str, default: str, absolute: Callable[[Path, Path], Path]) -> Callable[..., Any]:
    """An option with the name and the meaning of a parameter that is a path."""
    return click.option(
        name,
        type=click.Path(path_type=Path),
        default=Path(default),
        show_default=True,
        callback=lambda context, option, path: absolute(path, project_root()),
        help="The same as the parameter of kedro run.",
    )


STUDY = "study"
SELECTING = ("tags", "node_names", "to_nodes", "from_nodes", "from_inputs", "to_outputs", "namespaces")  # parts of it
ROOT = _root("--output-root", "data", output_path)
RAW = _root("--data-root", "data/01_raw", input_path)


def _parameters(context: click.Context, option: click.Parameter, text: Any) -> dict[str, Any]:
    """Parameters as Kedro reads them, but a folder or a class that is called 007 keeps its name."""
    given: dict[str, Any] = _split_params(context, option, text)
    typed = dict(item.split("=", 1) for item in text.split(",")) if isinstance(text, str) and text else {}
    for name, value in typed.items():
        if name.strip() in text_parameters() and isinstance(given[name.strip()], int | float):
            given[name.strip()] = value.strip()
    return given


def _parsed(context: click.Context, option: click.Parameter, text: str) -> tuple[str, dict[str, Any]]:
    """Parameters as they are typed, and as they are read."""
    return text, _parameters(context, option, text) if text else {}


@click.group(name="mpfm_kedro")
def cli() -> None:
    """Commands of this project."""


def _run(pipeline: str | None, pipelines: list[str], **options: Any) -> Any:
    """Run pipelines as Kedro does; ``--pipeline`` means ``--pipelines``, and an unknown name is one clear line."""
    names = [*pipelines, *([pipeline] if pipeline else [])]
    known = register_pipelines()
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            others = ", ".join(sorted(set(known) - {"__default__"}))
            raise InputError(f"There is no pipeline '{name}': {hint}There are: {others}")
    if STUDY in names and not any(options[name] for name in SELECTING):
        if names != [STUDY]:
            raise InputError(f"The pipeline '{STUDY}' runs alone; it begins with the comparisons of its datasets")
        own = {name: value for name, value in options.items() if name != "params"}
        env = options["env"] or os.environ.get("KEDRO_ENV")  # as Kedro's session does
        return run_study(options["params"], env, lambda one, given: _kedro([one], params=given, **own))
    return _kedro(names, **options)


def _kedro(names: list[str], **options: Any) -> Any:
    assert kedro_run.callback is not None
    return kedro_run.callback(pipeline=None, pipelines=names, **options)


run = copy.copy(kedro_run)
run.callback = _run
run.params = [copy.copy(option) for option in run.params]
next(option for option in run.params if option.name == "params").callback = _parameters
cli.add_command(run)


@cli.group()
def store() -> None:
    """The feature stores: list them, or free their disk space."""


@store.command("list")
@ROOT
def list_stores(output_root: Path) -> None:
    """Show every feature store with its size."""
    overview = _stores(output_root).overview()
    click.echo("no feature store" if overview.empty else overview.to_string(index=False))


@store.command()
@click.argument("name")
@ROOT
def free(name: str, output_root: Path) -> None:
    """Delete the feature store NAME; it is computed again when it is needed."""
    _stores(output_root).free(name)
    click.echo(f"{name} is deleted")


def _stores(output_root: Path) -> FeatureStore:
    return FeatureStore(_configured("feature_store", output_root))


def _configured(name: str, output_root: Path | None = None) -> Path:
    """The path of a dataset as the catalog states it."""
    parameters = {"output_root": str(output_root)} if output_root else {}
    return project_root() / project_loader(**parameters)["catalog"][name]["filepath"]


def _versions(output_root: Path) -> Path:
    """The folder of all versions: above dataset, study and name."""
    return _configured("{study}.summary_version", output_root).parents[2]


@cli.group()
def versions() -> None:
    """Versions of models and results: list them, or use older models again."""


@versions.command("list")
@ROOT
def list_all(output_root: Path) -> None:
    """Show every version with its AUC and what it was made from."""
    overview = list_versions(_versions(output_root))
    shown = overview.to_string(index=False, float_format="{:.4f}".format)
    click.echo("no version" if overview.empty else shown)


@versions.command()
@click.argument("dataset")
@click.argument("setting", type=click.Choice(["general", "hard", PRODUCTION]))
@click.argument("version")
@ROOT
@click.option("--env", default=None, help="Environment, the same as of kedro run.")
def use(dataset: str, setting: str, version: str, output_root: Path, env: str | None) -> None:
    """Put the models of VERSION (or of the one that begins so) in the place of the present ones."""
    version = find_version(_versions(output_root), dataset, setting, version)
    named = {"dataset": dataset} if dataset in SOURCES else {"dataset": "folder", "name": dataset}
    parameters = {**named, "output_root": str(output_root)}
    if setting == PRODUCTION:
        _use_production(version, parameters, env)
        return
    parts = [f"{setting}.{name}" for name in ("record", "runs", "trials", "initial_models", "models")]
    bootstrap_project(project_root())
    session = KedroSession.create(project_root(), env=env, runtime_params=parameters)
    with session, locked(output_root, Use(dataset, [setting])):
        context = session.load_context()
        catalog = context._get_catalog(load_versions={f"{part}_version": version for part in parts})
        record, learned_runs, trials, initial, models = (catalog.load(f"{part}_version") for part in parts)
        runs, features, samples = (catalog.load(name) for name in (f"{setting}.runs", "features", "samples"))
        grouped = context.config_loader["parameters"]["ingestion"]["group_split"]
        items = dict(zip(samples["sample_id"], joined_groups(samples), strict=True)) if grouped else None
        check_version(record, trials, initial | models, runs, features, learned_runs, items)
        cache = catalog.load("model_cache")
        catalog.save(f"{setting}.trials", trials)
        catalog.save(f"{setting}.initial_models", cache.restore(initial))
        catalog.save(f"{setting}.models", cache.restore(models))
    stages = ",".join(f"{setting}.{stage}" for stage in ("scoring", "evaluation", "reporting"))
    typed = shlex.quote(",".join(f"{name}={value}" for name, value in parameters.items()))
    environment = f" --env={env}" if env else ""
    click.echo(f"{dataset}, {setting} setting: the models are those of {version} now. To score with them:")
    click.echo(f"kedro run{environment} --pipelines={setting}_setting --namespaces={stages} --params={typed}")


def _use_production(version: str, parameters: dict[str, str], env: str | None) -> None:
    """Put a version of the production model in the place of the present one, and its collection with it."""
    bootstrap_project(project_root())
    session = KedroSession.create(project_root(), env=env, runtime_params=parameters)
    name = parameters.get("name", parameters["dataset"])
    with session, locked(Path(parameters["output_root"]), Use(name, [PRODUCTION])):
        catalog = session.load_context()._get_catalog(load_versions={"production.model_version": version})
        model, collection = catalog.load("production.model_version"), catalog.load("collection")
        catalog.save("production_model", model)
        catalog.save("collection", collection.with_rows(model.card["learned"]))
    click.echo(f"{name}: the production model is that of {version} now, and so is what it has learned")


@cli.group()
def fetch() -> None:
    """Obtain raw images or weights, without running a pipeline."""


@fetch.command()
@click.argument("dataset")
@RAW
def data(dataset: str, data_root: Path) -> None:
    """Put the images of DATASET into their folder; a folder that exists is not changed."""
    click.echo(fetch_images(dataset, data_root))


@fetch.command()
@click.argument("backbone")
def weights(backbone: str) -> None:
    """Obtain and verify the weights of BACKBONE, in the folder that the catalog names."""
    from mpfm_kedro.backbones.weights import obtain_weights  # with torch, which is slow to import

    folder = _configured("backbone_weights")
    obtain_weights(backbone, folder)
    click.echo(folder / f"{backbone}.safetensors")


@cli.command()
@click.option("--params", default="", callback=_parsed, help="The same as of kedro run, such as dataset=elpv.")
@click.option("--env", default=None, help="Environment, the same as of kedro run.")
@OPTIONS
def app(params: tuple[str, dict[str, Any]], env: str | None, images: Path | None, port: int, device: str) -> None:
    """Inspect images in a browser with the production model, and teach it what it got wrong."""
    project = Project.of(*params, env)
    serve(project.model, images, port, device, project)
