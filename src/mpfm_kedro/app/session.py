"""The images on the page with their predictions, and the marks that people set."""

import hashlib
import io
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock

from PIL import Image, UnidentifiedImageError

from mpfm_kedro.atomic import replacing, replacing_folder
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.collection import LABELS, LEARNING
from mpfm_kedro.inspection.finding import is_image
from mpfm_kedro.inspection.heat_maps import to_jpeg
from mpfm_kedro.inspection.inspector import Inspector, Neighbour, Prediction
from mpfm_kedro.inspection.predictions import OVERLAY_SIDE
from mpfm_kedro.inspection.preparation import read_content
from mpfm_kedro.sources.layout import IMAGE_SUFFIXES

MAX_IMAGES = 500  # on the page at once
MAX_BYTES = 50_000_000  # of one file
MAX_TOTAL = 2_000_000_000  # bytes of all files on the page
MEGAPIXELS = 50.0  # of one image
FORMATS = ("BMP", "DIB", "GIF", "JPEG", "PNG", "TIFF", "WEBP")  # Pillow knows many more, some run programs
LIMIT = f"{MEGAPIXELS:g} megapixels that this page takes; kedro run --pipelines=predict takes more"


class FullError(InputError):
    """There is no room for an image."""


@dataclass(frozen=True)
class PageImage:
    """An image on the page."""

    key: str  # of its content
    name: str  # of the file
    n_bytes: int  # of the file
    prediction: Prediction  # by the present model
    normals: list[Neighbour]  # the nearest ones
    anomalies: list[Neighbour]  # the nearest known one
    picture: bytes = field(repr=False)  # the image (JPEG)
    overlay: bytes = field(repr=False)  # with its heat map (JPEG)
    before: tuple[float, str] | None = None  # score and decision of the model before the present one


class Session:
    """The images on the page, in memory; their files are in a folder that is deleted at the end."""

    def __init__(self, inspector: Inspector, folder: Path) -> None:
        self.inspector = inspector
        self._folder = folder
        self._images: dict[str, PageImage] = {}
        self._lock = RLock()  # one prediction at a time: a second one would only be slower

    def images(self) -> list[PageImage]:
        """All images, the highest score first."""
        with self._lock:
            return sorted(self._images.values(), key=lambda image: -image.prediction.score)

    def find(self, key: str) -> PageImage:
        """One image."""
        with self._lock:
            if key not in self._images:
                raise InputError("The image is not on the page any more")
            return self._images[key]

    def content(self, key: str) -> bytes:
        """The file of an image."""
        return (self._folder / self.find(key).key).read_bytes()

    def check_space(self, more: int = 1) -> None:
        """Refuse more images than the page takes."""
        if len(self._images) + more > MAX_IMAGES:
            raise FullError(f"The page has room for {MAX_IMAGES} images; clear it first, or use kedro run for a folder")

    def add(self, name: str, content: bytes) -> PageImage:
        """Inspect a file and keep it; the same content again replaces the first."""
        check_file(name, content)
        with self._lock:
            key = hashlib.sha256(content).hexdigest()[:24]
            if key not in self._images:
                self.check_space()
                if sum(image.n_bytes for image in self._images.values()) + len(content) > MAX_TOTAL:
                    raise FullError(f"The page has room for {MAX_TOTAL / 1e9:g} GB of images; clear it first")
            image = self._inspect(key, name, content)
            with replacing(self._folder / key, len(content)) as partial:
                partial.write_bytes(content)
            self._images[key] = image
            return image

    def clear(self) -> None:
        """Remove all images."""
        with self._lock:
            for key in self._images:
                (self._folder / key).unlink(missing_ok=True)
            self._images.clear()

    def use(self, inspector: Inspector, report: Callable[[str], None]) -> None:
        """Inspect all images again with another model."""
        with self._lock:
            self.inspector = inspector
            for number, old in enumerate(list(self._images.values()), start=1):
                image = self._inspect(old.key, old.name, self.content(old.key))
                self._images[old.key] = replace(image, before=(old.prediction.score, old.prediction.decision))
                report(f"Inspected again: {number} of {len(self._images)} images")

    def _inspect(self, key: str, name: str, content: bytes) -> PageImage:
        image = read(name, content, self.inspector.card["pixel_range"])
        prediction = self.inspector.predict(image)
        picture = to_jpeg(image, OVERLAY_SIDE)
        overlay = to_jpeg(self.inspector.overlay(image, prediction), OVERLAY_SIDE)
        return PageImage(key, name, len(content), prediction, *self.inspector.explain(prediction), picture, overlay)


@dataclass(frozen=True)
class ToLearn:
    """Marked images as files in a folder for each label; they stay when the page is closed."""

    folder: Path

    def add(self, label: str, key: str, name: str, content: bytes) -> None:
        """Mark an image; another mark of it is replaced."""
        self.remove(key)
        safe = re.sub(r"[^\w.-]", "_", Path(name).name)[-80:]
        with replacing(self.folder / label / f"{key}-{safe}") as partial:
            partial.write_bytes(content)

    def remove(self, key: str) -> None:
        """Take a mark back."""
        for label in LABELS:
            for file in self._files(label, key):
                file.unlink(missing_ok=True)

    def images(self, label: str) -> dict[str, str]:
        """Names of the images of a label, by key."""
        parts = (file.name.partition("-") for file in self._files(label))
        return {key: name for key, _, name in sorted(parts)}

    def labels(self) -> dict[str, str]:
        """Labels of all images, by key."""
        return {key: label for label in LABELS for key in self.images(label)}

    def snapshot(self, label: str) -> Path:
        """A folder with copies of the images that are marked now, until ``forget``."""
        with replacing_folder(self.folder / LEARNING / label) as copies:
            for file in self._files(label):
                shutil.copyfile(file, copies / file.name)
        return self.folder / LEARNING / label

    def learned(self, label: str) -> None:
        """Delete the marks that the last snapshot holds, and none that was set since."""
        for copy in (self.folder / LEARNING / label).iterdir():
            (self.folder / label / copy.name).unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete all snapshots."""
        shutil.rmtree(self.folder / LEARNING, ignore_errors=True)

    def _files(self, label: str, key: str = "*") -> Iterator[Path]:
        return (self.folder / label).glob(f"{key}-*")


def check_file(name: str, content: bytes) -> None:
    """Refuse a file that does not end as images do, or is too large."""
    if not is_image(name):
        raise InputError(f"{name} is not taken: images end in {' '.join(sorted(IMAGE_SUFFIXES))}")
    if len(content) > MAX_BYTES:
        raise FullError(f"{name} is larger than {MAX_BYTES / 1e6:g} MB")


def read(name: str, content: bytes, pixel_range: str) -> Image.Image:
    """RGB of a file from anywhere."""
    try:
        if not name.lower().endswith(".npy"):
            Image.open(io.BytesIO(content), formats=FORMATS).close()
        return read_content(name, content, pixel_range, MEGAPIXELS)
    except UnidentifiedImageError as error:
        raise InputError(f"{name} cannot be used: it is not an image of {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{name} cannot be used: more pixels than the {LIMIT}") from error
    except Exception as error:  # parsers of damaged files let any error through
        problem = str(error).replace(f"ingestion.max_megapixels = {MEGAPIXELS:g}", f"the {LIMIT}")  # fixed here
        raise InputError(f"{name} cannot be used: {problem}") from error
