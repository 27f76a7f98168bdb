"""The server of the page: who may ask what, and the answers; HTML escapes all that comes from outside."""

import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request
from fastapi import Path as InAddress
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from mpfm_kedro.app.folder import ImageFolder
from mpfm_kedro.app.learning import Job, Project
from mpfm_kedro.app.session import MAX_BYTES, MAX_IMAGES, MEGAPIXELS, FullError, Session, ToLearn
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.collection import LABELS
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.thresholds import decide
from mpfm_kedro.reports.pages import SIGNS, STYLE, render
from mpfm_kedro.reports.predictions import draw_histogram
from mpfm_kedro.sources.layout import IMAGE_SUFFIXES

LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
MARKS = {"anomaly": "a missed defect", "normal": "a false alarm"}

Rate = Annotated[float | None, Query(gt=0, lt=1)]
Key = Annotated[str, InAddress(pattern="^[0-9a-f]{24}$")]
Name = Annotated[str, Query(min_length=1, max_length=500)]


@dataclass(frozen=True)
class AppState:
    """What the server works with."""

    session: Session  # the images on the page
    device: str  # auto, cpu or cuda
    folder: ImageFolder | None  # whose images may be inspected by name, if any
    project: Project | None  # of the model; without one it cannot learn
    job: Job  # runs the commands of the project

    @property
    def own_project(self) -> Project:
        """The project, or an error."""
        if self.project is None:
            raise InputError("The model cannot learn here: start the page with kedro app, in the project of the model")
        return self.project

    @property
    def own_folder(self) -> ImageFolder:
        """The folder, or an error."""
        if self.folder is None:
            raise InputError("No folder was named at start: kedro app --images FOLDER")
        return self.folder

    @property
    def to_learn(self) -> ToLearn:
        """The marked images."""
        return ToLearn(self.own_project.to_learn)

    def learn(self) -> None:
        """Start to learn all images that are marked now."""
        project, marked = self.own_project, self.to_learn
        labels = [label for label in LABELS if marked.images(label)]
        if not labels:
            raise InputError("No image is marked")

        def work() -> None:
            learned = 0
            try:
                given = {label: marked.snapshot(label) for label in labels}  # later marks are kept for the next time
                for label, images in given.items():
                    self.job.execute(project.learn(label, images))
                    marked.learned(label)
                    learned += 1
            finally:
                marked.forget()
                if learned:
                    self._reload()

        self.job.start("Learning", work)

    def go_back(self) -> None:
        """Start to restore the version before the present model."""
        version = self.own_project.earlier_version()
        if version is None:
            raise InputError("There is no earlier model")

        def work() -> None:
            self.job.execute(self.own_project.go_back(version))
            self._reload()

        self.job.start("Undoing", work)

    def _reload(self) -> None:
        self.session.use(Inspector.load(self.own_project.model, self.device), self.job.update)


def create_app(state: AppState) -> FastAPI:
    """The application; one for each start of the server, with a token of its own."""
    token = secrets.token_urlsafe(24)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        state.job.stop()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        problem = refusal(request, token)
        response = PlainTextResponse(problem, 403) if problem else await answer(request)
        response.headers.update(HEADERS)
        return response

    @app.exception_handler(InputError)
    async def explain(_: Request, error: InputError) -> Response:
        return PlainTextResponse(str(error), 413 if isinstance(error, FullError) else 422)

    @app.exception_handler(RequestValidationError)
    async def name_value(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return PlainTextResponse(f"{first['loc'][-1]} = {first['input']!r}: {first['msg']}", 422)

    _add_pages(app, state, token)
    _add_images(app, state)
    _add_learning(app, state)
    return app


def refusal(request: Request, token: str) -> str:
    """Why a request is not answered; empty where it is.

    Another host name is refused, as a site could let its name point here to read answers. Another site's requests
    change nothing: they lack origin and token.
    """
    host = request.headers.get("host", "")
    if not LOOPBACK.fullmatch(host):
        return "Refused: the page is for this machine alone, at 127.0.0.1 or localhost"
    visited = request.url.path == "/" and request.headers.get("sec-fetch-mode") == "navigate"
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not visited:
        return "Refused: another site has asked"
    if request.method in ("GET", "HEAD"):
        return ""
    if request.headers.get("origin") != f"http://{host}":
        return "Refused: another site has asked"
    if not secrets.compare_digest(request.headers.get("x-token", "").encode(), token.encode()):
        return "Refused: the page is of an earlier start; load it again"
    return ""


def _add_pages(app: FastAPI, state: AppState, token: str) -> None:
    session = state.session

    @app.get("/", response_class=HTMLResponse)
    def index(rate: Rate = None) -> str:
        card = session.inspector.card
        return render(
            "app_page.html",
            name=" ".join(filter(None, [str(card["dataset"]), str(card["category"])])),
            token=token,
            rate=rate or card["threshold"]["rate"],
            folders=state.folder.folders() if state.folder else None,
            suffixes=",".join(sorted(IMAGE_SUFFIXES)),
            max_bytes=MAX_BYTES,
            limits=f"up to {MAX_IMAGES} images of at most {MAX_BYTES / 1e6:g} MB and {MEGAPIXELS:g} megapixels",
        )

    @app.get("/style.css")
    def style() -> Response:
        return Response(STYLE + render("app.css"), media_type="text/css")

    @app.get("/page.js")
    def script() -> Response:
        return Response(Path(__file__).with_name("page.js").read_text("utf-8"), media_type="text/javascript")

    @app.get("/results", response_class=HTMLResponse)
    def results(rate: Rate = None) -> str:
        inspector, images = session.inspector, session.images()
        calibration, stated = inspector.model.calibration, inspector.card["threshold"]
        threshold = inspector.threshold_for(rate or stated["rate"], stated["confidence"])
        scores = [image.prediction.score for image in images]
        decisions = decide(scores, threshold, [image.prediction.likeness for image in images]).tolist()
        counts = Counter(decisions)
        names = inspector.model.gallery.table["sample_id"]
        addresses = {name: f"known/{index}" for index, name in enumerate(names)}
        return render(
            "app_results.html",
            guarantee=f"{calibration.describe(threshold)} The model was made on {inspector.card['made']}.",
            histogram=draw_histogram(inspector.normal_scores, scores, threshold),
            counts=", ".join(f"{counts[name]:,} {name}" for name in SIGNS if counts[name]),
            alike=threshold.alike,
            rarity=calibration.describe_parts,
            images=list(zip(images, decisions, strict=True)),
            neighbours=lambda near: [
                (addresses[one.sample_id], one.sample_id) for one in near if one.sample_id in addresses
            ],
            labels=state.to_learn.labels() if state.project else None,
            marks=MARKS,
        )


def _add_images(app: FastAPI, state: AppState) -> None:
    session = state.session

    @app.post("/images", status_code=201, response_class=PlainTextResponse)
    async def upload(request: Request, name: Name) -> str:
        session.check_space()
        content = await read_body(request, name)
        return (await run_in_threadpool(session.add, Path(name).name, content)).key

    @app.get("/folder")
    def list_folder(path: Name) -> list[str]:
        names = state.own_folder.images(path)
        session.check_space(len(names))
        return names

    @app.post("/folder", status_code=201, response_class=PlainTextResponse)
    def add_from_folder(path: Name) -> str:
        return session.add(path, state.own_folder.read(path)).key

    @app.get("/images/{key}/{kind}")
    def picture(key: Key, kind: Literal["picture", "overlay"]) -> Response:
        found = session.find(key)
        return Response(found.picture if kind == "picture" else found.overlay, media_type="image/jpeg")

    @app.get("/known/{place}")
    def known(place: Annotated[int, InAddress(ge=0)]) -> Response:
        thumbnails = session.inspector.model.gallery.table["thumbnail"]
        if place >= len(thumbnails):
            raise InputError("The model knows no such image")
        return Response(thumbnails.iloc[place], media_type="image/jpeg")

    app.post("/clear")(session.clear)


def _add_learning(app: FastAPI, state: AppState) -> None:
    @app.post("/images/{key}/mark")
    def mark(key: Key, label: Literal["anomaly", "normal"]) -> None:
        state.to_learn.add(label, key, state.session.find(key).name, state.session.content(key))

    @app.post("/images/{key}/unmark")
    def unmark(key: Key) -> None:
        state.to_learn.remove(key)

    @app.get("/learning", response_class=HTMLResponse)
    def learning() -> str:
        if state.project is None:
            return ""
        marked = {label: state.to_learn.images(label) for label in LABELS}
        earlier = state.project.earlier_version()
        return render("app_learning.html", marked=marked, marks=MARKS, job=state.job, earlier=earlier)

    app.post("/learn", status_code=202)(state.learn)
    app.post("/undo", status_code=202)(state.go_back)


async def read_body(request: Request, name: str) -> bytes:
    """The content of an upload; one that is too large is refused before all of it was read."""
    content = bytearray()
    try:
        async for part in request.stream():
            content += part
            if max(len(content), int(request.headers.get("content-length") or 0)) > MAX_BYTES:
                raise FullError(f"{name} is larger than {MAX_BYTES / 1e6:g} MB")
    except ClientDisconnect as error:
        raise InputError("The upload was cut") from error
    return bytes(content)
