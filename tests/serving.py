"""The app on the synthetic model, with an empty page; and really served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import uvicorn

from mpfm_kedro.app.folder import ImageFolder
from mpfm_kedro.app.learning import Job, Project
from mpfm_kedro.app.server import AppState, create_app
from mpfm_kedro.app.session import Session
from mpfm_kedro.app.starting import listening
from mpfm_kedro.inspection.inspector import Inspector


def make_state(inspector: Inspector, images: Path, fitted_project: Path, folder: Path) -> AppState:
    """Images below ``images`` may be named; uploads and marks are in ``folder``."""
    files, out = folder / "files", fitted_project / "out"
    files.mkdir()
    model, versions = (out / f"{name}/synthetic/production/model" for name in ("06_models", "versions"))
    project = Project("", "test", "synthetic", out, model, versions, folder / "to_learn")
    return AppState(Session(inspector, files), "cpu", ImageFolder(images), project, Job())


@contextmanager
def serving(state: AppState) -> Iterator[str]:
    """The address of a real server."""
    own = listening(0)
    server = uvicorn.Server(uvicorn.Config(create_app(state), log_level="warning", lifespan="on"))
    thread = Thread(target=server.run, kwargs={"sockets": [own]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{own.getsockname()[1]}"
    server.should_exit = True
    thread.join(20)
