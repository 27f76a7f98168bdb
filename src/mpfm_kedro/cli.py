"""Commands of the project beside Kedro's own."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from kedro.framework.cli.project import run
from kedro.io import DataCatalog

from mpfm_kedro.app.learning import Project
from mpfm_kedro.app.starting import OPTIONS, serve
from mpfm_kedro.backbones.store import FeatureStore
from mpfm_kedro.configuration import input_path, output_path, project_loader, project_root
from mpfm_kedro.errors import InputError, unknown
from mpfm_kedro.inspection.versions import find_version, list_versions
from mpfm_kedro.locks import Use, locked
from mpfm_kedro.parameter_checks import text_parameters
from mpfm_kedro.pipeline_registry import NAMES
from mpfm_kedro.protocol.runs import PRODUCTION
from mpfm_kedro.sources import SOURCES, get_source


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


ROOT = _root("--output-root", "data", output_path)
RAW = _root("--data-root", "data/01_raw", input_path)
ENV = click.option("--env", envvar="KEDRO_ENV", default=None, help="Environment, the same as of kedro run.")


class PipelineNames(click.ParamType):
    """Names of pipelines with commas between them; an unknown one is an error with the nearest names."""

    name = "pipelines"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the names."""
        for name in filter(None, map(str.strip, value.split(","))):
            if name not in [*NAMES, "__default__"]:
                raise unknown("pipeline", name, NAMES)
        return value


MAX_LISTS = 100  # YAML reads nested ones recursively


class TypedParameters(click.ParamType):
    """Parameters as they are typed; numbers for text parameters are quoted, since YAML reads 007 as 7."""

    name = "name=value,…"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Quote what is a text."""
        if max(value.count("["), value.count("{")) > MAX_LISTS:
            raise InputError(f"--params has more than {MAX_LISTS} lists or groups")
        names = "|".join(sorted(text_parameters()))
        return re.sub(rf"(^|,)(\s*(?:{names})\s*=)\s*([-+.\d][-+.\deE_]*)\s*(?=,|$)", r"\1\2'\3'", value)


TYPES = {"params": TypedParameters(), "pipeline": PipelineNames(), "pipelines": PipelineNames()}
OPTIONS_OF_RUN = {str(option.name): option for option in run.params}
for name in TYPES:  # of Kedro's own command
    OPTIONS_OF_RUN[name].type = TYPES[name]


def _parsed(context: click.Context, option: click.Parameter, text: str) -> tuple[str, dict[str, Any]]:
    """Parameters as they are typed, and as Kedro reads them."""
    read = OPTIONS_OF_RUN["params"].callback
    return text, read(context, option, text) if read else {}


PARAMS = click.option(
    "--params",
    default="",
    type=TYPES["params"],
    callback=_parsed,
    help="The same as of kedro run, such as dataset=elpv.",
)


@click.group(name="mpfm_kedro")
def cli() -> None:
    """Commands of this project."""


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@PARAMS
@ENV
def study(file: Path, params: tuple[str, dict[str, Any]], env: str | None) -> None:
    """Compare methods on every dataset of a study FILE that is there, and report on all of them."""
    from mpfm_kedro.study_sessions import run_study  # with scipy, which is slow to import

    run_study(file, params[1], env)


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
    return FeatureStore(_path("features", "store", output_root=str(output_root)))


def _path(dataset: str, name: str = "filepath", **parameters: str) -> Path:
    """A path of the catalog."""
    return project_root() / project_loader(**parameters)["catalog"][dataset][name]


def _versions(output_root: Path) -> Path:
    """The folder of all versions: above dataset, study and name."""
    return _path("production_model_version", output_root=str(output_root)).parents[2]


@cli.group()
def versions() -> None:
    """Versions of production models: list them, or restore one."""


@versions.command("list")
@ROOT
def list_all(output_root: Path) -> None:
    """Show every version and what it was made from."""
    overview = list_versions(_versions(output_root), _path("production_model", output_root=str(output_root)).parents[2])
    click.echo("no version" if overview.empty else f"{overview.to_string(index=False)}\n* the present model")


@versions.command()
@click.argument("dataset")
@click.argument("version")
@ROOT
@ENV
def use(dataset: str, version: str, output_root: Path, env: str | None) -> None:
    """Restore the production model VERSION (a unique prefix is enough) of DATASET and its learned images."""
    version = find_version(_versions(output_root), dataset, version)
    named = {"dataset": dataset} if dataset in SOURCES else {"dataset": "folder", "name": dataset}
    loader = project_loader(env, **named, output_root=str(output_root))
    catalog = DataCatalog.from_config(loader["catalog"], load_versions={"production_model_version": version})
    with locked(output_root, Use(dataset, [PRODUCTION])):
        model, collection = catalog.load("production_model_version"), catalog.load("collection")
        catalog.save("production_model", model)
        catalog.save("collection", collection.with_rows(model.card["learned"]))
    click.echo(f"{dataset}: restored production model {version} and its learned images")


@cli.group()
def fetch() -> None:
    """Obtain raw images or weights, without running a pipeline."""


@fetch.command()
@click.argument("dataset")
@RAW
def data(dataset: str, data_root: Path) -> None:
    """Put the images of DATASET into their folder; a folder that exists is not changed."""
    click.echo(get_source(dataset).fetch(data_root))


@fetch.command()
@click.argument("backbone")
def weights(backbone: str) -> None:
    """Obtain and verify the weights of BACKBONE, in the folder that the catalog names."""
    from mpfm_kedro.backbones.weights import obtain_weights  # with torch, which is slow to import

    folder = _path("backbone_weights")
    obtain_weights(backbone, folder)
    click.echo(folder / f"{backbone}.safetensors")


@cli.command()
@PARAMS
@ENV
@OPTIONS
def app(params: tuple[str, dict[str, Any]], env: str | None, images: Path | None, port: int, device: str) -> None:
    """Inspect images in a browser with the production model, and teach it what it got wrong."""
    project = Project.of(*params, env)
    serve(project.model, images, port, device, project)
