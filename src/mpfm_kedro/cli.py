"""Commands of the project beside Kedro's own."""

from __future__ import annotations

from pathlib import Path

import click

from mpfm_kedro.io.feature_store import FeatureStore
from mpfm_kedro.io.history import History
from mpfm_kedro.sources.fetching import fetch as fetch_images

ROOT = click.option(
    "--output-root", type=click.Path(path_type=Path), default=Path("data"), show_default=True, help="As the parameter."
)
RAW = click.option(
    "--data-root",
    type=click.Path(path_type=Path),
    default=Path("data/01_raw"),
    show_default=True,
    help="As the parameter.",
)


@click.group(name="mpfm_kedro")
def cli() -> None:
    """Commands of this project."""


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
    """Delete the feature store NAME; it is computed anew when it is needed."""
    _stores(output_root).free(name)
    click.echo(f"{name} is deleted")


def _stores(output_root: Path) -> FeatureStore:
    return FeatureStore(output_root / "04_feature/store")


@cli.group()
def versions() -> None:
    """The history of models and results: list it, or take up older models."""


@versions.command("list")
@ROOT
def list_versions(output_root: Path) -> None:
    """Show every version with its AUC and what it was made from."""
    overview = History(output_root).overview()
    shown = overview.to_string(index=False, float_format="{:.4f}".format)
    click.echo("no version" if overview.empty else shown)


@versions.command()
@click.argument("dataset")
@click.argument("setting", type=click.Choice(["general", "hard"]))
@click.argument("version")
@ROOT
def use(dataset: str, setting: str, version: str, output_root: Path) -> None:
    """Put the models of VERSION in the place of the present ones, to score with them again."""
    History(output_root).use(dataset, setting, version)
    stages = ",".join(f"{setting}.{stage}" for stage in ("scoring", "evaluation", "reporting"))
    click.echo(f"to score with them: kedro run --pipelines={setting}_setting --namespaces={stages}")


@cli.group()
def fetch() -> None:
    """Raw data in its place, without running anything."""


@fetch.command()
@click.argument("dataset")
@RAW
def data(dataset: str, data_root: Path) -> None:
    """Put the images of DATASET in their folder; downloaded ones are left as they are."""
    click.echo(fetch_images(dataset, data_root))


@fetch.command()
@click.argument("backbone")
@RAW
def weights(backbone: str, data_root: Path) -> None:
    """Obtain and verify the weights of BACKBONE."""
    from mpfm_kedro.backbones.weights import obtain_weights  # with torch, which is slow to import

    obtain_weights(backbone, data_root / "weights")
    click.echo(data_root / "weights" / f"{backbone}.safetensors")
