"""Start the server on this machine alone."""

import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from mpfm_kedro.app.learning import Job, Project
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.model import read_card

ADDRESS = "127.0.0.1"


def OPTIONS(command: Callable[..., Any]) -> Callable[..., Any]:  # noqa: N802, used as a decorator
    """The options of every way to start."""
    folder = "Folder whose images, and those in its folders, may be inspected by name."
    for option in (
        click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda."),
        click.option("--port", default=8040, show_default=True, type=click.IntRange(0, 65535), help="0: a free one."),
        click.option("--images", type=click.Path(path_type=Path), default=None, help=folder),
    ):
        command = option(command)
    return command


def serve(model: Path, images: Path | None, port: int, device: str, project: Project | None = None) -> None:
    """Load the model and answer until Ctrl-C."""
    try:
        import fastapi  # noqa: F401, the first of two packages that may be missing
        import uvicorn
    except ModuleNotFoundError as error:
        raise InputError(f"The app needs the package {error.name}: pip install 'mpfm_kedro[app]'") from error
    if images is None:  # else the images are checked first
        read_card(model)  # before torch, which is slow to import
    from mpfm_kedro.app.folder import ImageFolder
    from mpfm_kedro.app.server import AppState, create_app
    from mpfm_kedro.app.session import Session
    from mpfm_kedro.inspection.inspector import Inspector

    folder = ImageFolder(images) if images else None
    _end_on_signals()
    with listening(port) as own, TemporaryDirectory(prefix="mpfm_kedro-app-") as files:
        session = Session(Inspector.load(model, device), Path(files))
        state = AppState(session, device, folder, project, Job())
        click.echo(f"Open http://{ADDRESS}:{own.getsockname()[1]} (Ctrl-C ends it)")
        config = uvicorn.Config(create_app(state), log_level="warning", lifespan="on", timeout_graceful_shutdown=3)
        uvicorn.Server(config).run(sockets=[own])


def _end_on_signals() -> None:
    """Delete uploads on SIGTERM and SIGHUP, too: uvicorn shuts down on SIGTERM and raises it again."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def listening(port: int) -> socket.socket:
    """A socket on this machine alone; a port that another program uses is named."""
    own = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        own.bind((ADDRESS, port))
        own.listen()
    except OSError as error:
        own.close()
        raise InputError(f"Port {port} cannot be used ({error.strerror}); choose another one with --port") from error
    return own
