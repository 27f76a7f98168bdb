"""The images on the page: what the model says of each, and what people say of it."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock

from PIL import Image, UnidentifiedImageError

from mpfm_kedro.app.limits import FORMATS, MAX_BYTES, MAX_IMAGES, MAX_TOTAL, MEGAPIXELS
from mpfm_kedro.errors import InputError
from mpfm_kedro.files import replacing
from mpfm_kedro.inspection.collection import LABELS
from mpfm_kedro.inspection.finding import is_image
from mpfm_kedro.inspection.inspector import Inspector, Likeness, Prediction
from mpfm_kedro.inspection.predictions import OVERLAY_SIDE
from mpfm_kedro.inspection.preparation import read_content
from mpfm_kedro.sources.layout import IMAGE_SUFFIXES

LIMIT = f"{MEGAPIXELS:g} megapixels that this page takes; kedro run --pipelines=predict takes more"


class FullError(InputError):
    """There is no room for an image."""


@dataclass(frozen=True)
class Inspected:
    """An image on the page.

    Args:
        key: of its content.
        name: that it was given.
        prediction: what the model says.
        normals: the nearest ones.
        anomalies: the nearest known one.
        picture: the image (JPEG).
        overlay: with its heat map (JPEG).
        before: score and decision of the model before the present one.
    """

    key: str
    name: str
    prediction: Prediction
    normals: list[Likeness]
    anomalies: list[Likeness]
    picture: bytes = field(repr=False)
    overlay: bytes = field(repr=False)
    before: tuple[float, str] | None = None


class Session:
    """The images on the page, in memory; their files are in a folder that is deleted at the end.

    Args:
        inspector: of the model.
        folder: for the files.
    """

    def __init__(self, inspector: Inspector, folder: Path) -> None:
        self.inspector = inspector
        self._folder = folder
        self._images: dict[str, Inspected] = {}
        self._bytes: dict[str, int] = {}
        self._lock = RLock()  # one prediction at a time: a second one would only be slower

    def images(self) -> list[Inspected]:
        """All images, the highest score first."""
        with self._lock:
            return sorted(self._images.values(), key=lambda image: -image.prediction.score)

    def find(self, key: str) -> Inspected:
        """One image."""
        with self._lock:
            if key not in self._images:
                raise InputError("The image is not on the page any more")
            return self._images[key]

    def content(self, key: str) -> bytes:
        """The file of an image."""
        return (self._folder / self.find(key).key).read_bytes()

    def check_room(self, more: int = 1) -> None:
        """Refuse images for which there is no room."""
        if len(self._images) + more > MAX_IMAGES:
            raise FullError(f"The page has room for {MAX_IMAGES} images; clear it first, or use kedro run for a folder")

    def add(self, name: str, content: bytes) -> Inspected:
        """Inspect a file and keep it; the same content again takes the place of the first."""
        check_file(name, content)
        with self._lock:
            key = hashlib.sha256(content).hexdigest()[:24]
            if key not in self._images:
                self.check_room()
                if sum(self._bytes.values()) + len(content) > MAX_TOTAL:
                    raise FullError(f"The files on the page have {MAX_TOTAL / 1e9:g} GB together; clear it first")
            found = self._inspect(key, name, content)
            (self._folder / key).write_bytes(content)
            self._images[key], self._bytes[key] = found, len(content)
            return found

    def clear(self) -> None:
        """Remove all images."""
        with self._lock:
            for key in self._images:
                (self._folder / key).unlink(missing_ok=True)
            self._images.clear()
            self._bytes.clear()

    def use(self, inspector: Inspector, report: Callable[[str], None]) -> None:
        """Go on with another model: all images are inspected again."""
        with self._lock:
            self.inspector = inspector
            for number, old in enumerate(list(self._images.values()), start=1):
                again = self._inspect(old.key, old.name, self.content(old.key))
                before = old.prediction.score, old.prediction.decision
                self._images[old.key] = replace(again, before=before)
                report(f"Inspected again: {number} of {len(self._images)} images")

    def _inspect(self, key: str, name: str, content: bytes) -> Inspected:
        image = read(name, content, self.inspector.card["pixel_range"])
        prediction = self.inspector.predict(image)
        overlay = self.inspector.overlay(image, prediction)
        normals, anomalies = self.inspector.explain(prediction)
        return Inspected(key, name, prediction, normals, anomalies, _jpeg(image), _jpeg(overlay))


@dataclass(frozen=True)
class ToLearn:
    """Images that people have marked, as files in a folder for each label; they stay when the page is closed."""

    folder: Path

    def add(self, label: str, key: str, name: str, content: bytes) -> None:
        """Mark an image; another mark of it is replaced."""
        self.remove(key)
        safe = re.sub(r"[^\w.-]", "_", Path(name).name)[-80:]
        with replacing(self.folder / label / f"{key}-{safe}") as partial:
            partial.write_bytes(content)

    def remove(self, key: str) -> None:
        """Take a mark back."""
        for file in self._files(key=key):
            file.unlink(missing_ok=True)

    def clear(self, label: str) -> None:
        """Forget the images of a label, once they were learned."""
        for file in self._files(label):
            file.unlink(missing_ok=True)

    def images(self, label: str) -> dict[str, str]:
        """Names of the images of a label, by key."""
        parts = (file.name.partition("-") for file in self._files(label))
        return {key: name for key, _, name in sorted(parts)}

    def labels(self) -> dict[str, str]:
        """Labels of all images, by key."""
        return {key: label for label in LABELS for key in self.images(label)}

    def _files(self, label: str = "*", key: str = "*") -> list[Path]:
        return list(self.folder.glob(f"{label}/{key}-*"))


def check_file(name: str, content: bytes) -> None:
    """Refuse a file that is no image by its name, or too large."""
    if not is_image(name):
        raise InputError(f"{name} is not taken: images end in {' '.join(sorted(IMAGE_SUFFIXES))}")
    if len(content) > MAX_BYTES:
        raise FullError(f"{name} is larger than {MAX_BYTES / 1e6:g} MB")


def read(name: str, content: bytes, pixel_range: str) -> Image.Image:
    """RGB of a file that nobody has checked."""
    try:
        if not name.lower().endswith(".npy"):
            Image.open(io.BytesIO(content), formats=FORMATS).close()
        return read_content(name, content, pixel_range, MEGAPIXELS)
    except UnidentifiedImageError as error:
        raise InputError(f"{name} cannot be used: it is no image of {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{name} cannot be used: more pixels than the {LIMIT}") from error
    except Exception as error:  # parsers of damaged files let any error through
        problem = str(error).replace(f"ingestion.max_megapixels = {MEGAPIXELS:g}", f"the {LIMIT}")  # fixed here
        raise InputError(f"{name} cannot be used: {problem}") from error


def _jpeg(image: Image.Image) -> bytes:
    small, content = image.copy(), io.BytesIO()
    small.thumbnail((OVERLAY_SIDE, OVERLAY_SIDE))
    small.save(content, format="jpeg", quality=88)
    return content.getvalue()
