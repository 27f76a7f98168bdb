"""The Kedro dataset of the loader of a dataset's images."""

from pathlib import Path
from typing import Any

from kedro_datasets._typing import ImagePreview
from PIL import Image, ImageOps

from mpfm_kedro.datasets.files import PathDataset
from mpfm_kedro.datasets.previews import show_image
from mpfm_kedro.images.loading import THUMBNAIL, ImageLoader
from mpfm_kedro.sources import get_source

PREVIEW_ROWS, PREVIEW_COLUMNS = 3, 4


class ImagesDataset(PathDataset):
    """The loader of a dataset's images; what earlier runs found of the files is in ``filepath``."""

    def __init__(
        self,
        filepath: str,
        dataset: str,
        data_root: str,
        max_megapixels: float,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(filepath, metadata)
        self._dataset = dataset
        self._root = Path(data_root)
        self._max_pixels = int(max_megapixels * 1e6)

    def load(self) -> ImageLoader:
        """The loader for the folder in which the source finds the files."""
        folder = get_source(self._dataset).locate(self._root)
        return ImageLoader(self._dataset, folder, self._max_pixels, self.path)

    def preview(self) -> ImagePreview:
        """A few of the audit's thumbnails side by side, for kedro-viz."""
        files = sorted(self.path.with_name("thumbnails").glob("[!.]*.png"))
        sheet = Image.new("RGB", (PREVIEW_COLUMNS * THUMBNAIL, PREVIEW_ROWS * THUMBNAIL), "white")
        for i, file in enumerate(files[: PREVIEW_ROWS * PREVIEW_COLUMNS]):
            row, column = divmod(i, PREVIEW_COLUMNS)
            with Image.open(file) as image:
                shown = ImageOps.contain(image, (THUMBNAIL - 4, THUMBNAIL - 4))
            sheet.paste(shown, (column * THUMBNAIL, row * THUMBNAIL))
        return show_image(sheet)

    def _exists(self) -> bool:
        return get_source(self._dataset).locate(self._root).is_dir()
