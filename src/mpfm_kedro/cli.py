"""Commands of the project beside Kedro's own."""

from __future__ import annotations

from pathlib import Path

import click

from mpfm_kedro.io.feature_store import FeatureStore

ROOT = click.option(
    "--output-root", type=click.Path(path_type=Path), default=Path("data"), show_default=True, help="As the parameter."
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
