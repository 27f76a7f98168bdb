"""A user's own images: MVTec's layout, or ``good/`` beside one folder for each class of defects.

    train/good, test/good, test/<defect>, and masks, if any, in ground_truth/<defect>/<name>_mask.png
    good, <defect>, and masks, if any, likewise

Folders in these folders belong to them: good/batch1/a.png is a normal.

The first has its own split, unless there is no ``test/good``. Folders of defects may be missing: then there are
only normals to learn from.
"""

import re
from pathlib import Path

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.layout import IMAGE_SUFFIXES, Layout, Rows, find_folder, image_files, subfolders
from mpfm_kedro.sources.source import Source

TITLE = "Own folder"
LAYOUTS = "either good/ beside one folder for each defect, or train/good, test/good and test/<defect>"
OBTAIN = f"your own images, as {LAYOUTS}"


def locate(root: Path) -> Path:
    """The data root itself if it has images of the layout, else ``folder`` in it."""
    if has_layout(root):
        return root
    if not root.is_dir():
        problem = "is not a folder" if root.exists() else "does not exist"
        raise InputError(f"{TITLE}: data_root {root} {problem}; expected is {LAYOUTS}")
    if (root / "folder").is_dir():
        return find_folder(root / "folder", TITLE, ["good", "train"], OBTAIN)
    raise InputError(f"{TITLE}: data_root {root} has neither good/ nor train/good. {_advice(root)}")


def has_layout(folder: Path) -> bool:
    """Whether a folder has good images where own images have them."""
    return (folder / "good").is_dir() or (folder / "train" / "good").is_dir()


def _advice(root: Path) -> str:
    """What to do about a folder without the layout: name the one that was meant, or arrange the images."""
    if meant := next((folder for folder in [root.parent, *subfolders(root)] if has_layout(folder)), None):
        return f"{meant} has: is data_root={meant} meant?"
    folders = ", ".join(path.name for path in subfolders(root))
    holds = f"the folders {folders}" if folders else f"{len(image_files(root))} images and no folder"
    return f"It holds {holds}. Call the folder of good images good; expected is {LAYOUTS}"


def own_name(root: Path) -> str:
    """What results of these images are called: as their folder, in characters that suit any path."""
    try:
        folder = locate(root)
    except InputError:  # which will be said when the images are read
        return "folder"
    return re.sub(r"[^\w.-]+", "_", folder.resolve().name).strip("._-") or "folder"


def _rows(layout: Layout) -> Rows:
    folder = layout.folder
    beside, parted = (folder / "good").is_dir(), (folder / "train" / "good").is_dir()
    if beside == parted:
        which = "both good/ and" if beside else "neither good/ nor"
        raise layout.error(f"{folder} has {which} train/good; expected is {LAYOUTS}")
    if beside:
        yield from _normal_rows(layout, folder / "good")
        yield from _defect_rows(layout, folder)
        return
    layout.refuse_others(folder, ["train", "test", "ground_truth"])
    layout.refuse_others(folder / "train", ["good"])
    if (folder / "test" / "good").is_dir():
        yield from _normal_rows(layout, folder / "train" / "good", "train")
        yield from _normal_rows(layout, folder / "test" / "good", "test")
    else:
        yield from _normal_rows(layout, folder / "train" / "good")
        layout.warn("without %s, part of train/good will be the test", folder / "test" / "good")
    if (folder / "test").is_dir():
        yield from _defect_rows(layout, folder / "test")


def _normal_rows(layout: Layout, images: Path, split: str = "") -> Rows:
    return (layout.sample(image, split=split) for image in _class_images(layout, images))


def _defect_rows(layout: Layout, parent: Path) -> Rows:
    if loose := image_files(parent):
        layout.warn("%d images in no class folder are skipped, e.g. %s", len(loose), loose[0])
    for images in subfolders(parent):
        if images.name in ("good", "ground_truth"):
            continue
        masks = _masks(layout, images.name)
        for image in _class_images(layout, images, parent):
            name = image.relative_to(images).with_suffix("").as_posix()
            mask = masks.get(f"{name}_mask", masks.get(name))
            if masks and not mask:
                layout.warn("%s has no mask in ground_truth", image)
            yield layout.sample(image, images.name, mask)


def _class_images(layout: Layout, images: Path, *above: Path) -> list[Path]:
    """The images of a class, of which there must be some; a link to a folder above is not a class."""
    folders = [folder.resolve() for folder in (layout.folder, *above)]
    found = layout.nested_images(images, folders)
    if not found and images.resolve() not in folders:
        raise layout.error(f"no image in {images}; expected are {' '.join(sorted(IMAGE_SUFFIXES))}")
    return found


def _masks(layout: Layout, defect: str) -> dict[str, Path]:
    """The masks of a class, by their path in its folder without the suffix."""
    folder = layout.folder / "ground_truth" / defect
    files = layout.nested_images(folder) if folder.is_dir() else []
    return {mask.relative_to(folder).with_suffix("").as_posix(): mask for mask in files}


SOURCE = Source(
    name="folder",
    title=TITLE,
    licence="yours",
    obtain=OBTAIN,
    counts=None,
    split="listed",
    find=locate,
    rows=_rows,
)
