"""Optical (DAGM 2007): synthetic textures in ten classes, pooled into one normal and one anomalous class.

``Class<i>/Class<i>/{Train,Test}/Label/Labels.txt`` names the images: one line ahead, then columns between
tabs, of which [1] is the flag of a defect, [2] the image and [4] the label image. File names repeat from
class to class: the path, which is the id, keeps the class.
"""

from pathlib import Path

from mpfm_kedro.sources.layout import Layout, Rows, image_files
from mpfm_kedro.sources.source import Counts, Source

CLASSES = [f"Class{number}" for number in range(1, 11)]


def _rows(layout: Layout) -> Rows:
    for path in layout.class_folders(layout.folder, CLASSES).values():
        for name in ("Train", "Test"):
            part = layout.inner(name, parent=path)
            yield from _part_rows(layout, part, layout.inner("Label", parent=part))


def _part_rows(layout: Layout, part: Path, label_folder: Path) -> Rows:
    lines = read_labels(layout, label_folder / "Labels.txt")
    images, masks = ({file.name.lower(): file for file in image_files(folder)} for folder in (part, label_folder))
    if others := sorted(set(images) - {image.lower() for image, _ in lines}):
        layout.warn("%d images in %s are not in Labels.txt, e.g. %s", len(others), part, others[0])
    for image, mask in lines:
        for name, files, folder in ((image, images, part), (mask, masks, label_folder)):
            if name and name.lower() not in files:  # copies differ in the case of .PNG
                raise layout.error(f"{folder / name} is missing, and Labels.txt names it")
        yield layout.sample(images[image.lower()], "defect" if mask else "", masks[mask.lower()] if mask else None)


def read_labels(layout: Layout, file: Path) -> list[tuple[str, str]]:
    """Image and label image ("" for a normal one) from each line of a Labels.txt but the first."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise layout.error(f"cannot read {file}: {error}") from error
    if not lines or "\t" in lines[0]:
        raise layout.error(f"{file} should begin with a line of one number, and then list the images")
    found = []
    for number, line in enumerate(lines[1:], 2):
        match [field.strip() for field in line.split("\t")]:
            case [_, "0", image, *_]:
                found.append((image, ""))
            case [_, "1", image, _, mask, *_] if mask:
                found.append((image, mask))
            case _ if line.strip():
                expected = "expected number, flag 0 or 1, image, number, label image"
                raise layout.error(f"{file}, line {number}: {expected}; found {line!r}")
    return found


SOURCE = Source(
    name="optical",
    title="Optical (DAGM 2007)",
    obtain="the Heidelberg Collaboratory for Image Processing (DAGM 2007 competition)",
    expected=CLASSES,
    counts={"": Counts(train=10500, test=3500, anomalies={"defect": 2100})},
    rows=_rows,
)
