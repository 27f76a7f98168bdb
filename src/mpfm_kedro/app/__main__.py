"""``python -m mpfm_kedro.app --model FOLDER``: the page for a model, without a project."""

from pathlib import Path

import click

from mpfm_kedro.app.starting import OPTIONS, serve


@click.command()
@click.option("--model", type=click.Path(path_type=Path), required=True, help="A model folder.")
@OPTIONS
def main(model: Path, images: Path | None, port: int, device: str) -> None:
    """Inspect images in a browser; the model cannot learn here."""
    serve(model, images, port, device)


if __name__ == "__main__":
    main()
