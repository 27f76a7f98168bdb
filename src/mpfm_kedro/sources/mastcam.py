"""Mastcam: multispectral images of Mars, ``.npy`` arrays of 64×64×6; the first three channels are used.

``train_typical`` and ``test_typical`` are the normals with their own split, each folder of ``test_novel`` is
a class of anomalies. ``test_novel/all`` repeats these classes and is skipped, ``validation_typical`` is
not used. A frame that carries two labels is in two classes: its name is its item.
"""

from pathlib import Path

from mpfm_kedro.sources.layout import Layout, Rows, subfolders
from mpfm_kedro.sources.source import Counts, Source

REPEATED = "all"
N_CLASSES = 11
PAPER_CLASSES = {"bedrock", "broken-rock", "drill-hole", "drt", "dump-pile", "float", "meteorite", "scuff", "veins"}


def _rows(layout: Layout) -> Rows:
    for split in ("train", "test"):
        yield from _arrays(layout, layout.folder / f"{split}_typical", split=split)
    novel = layout.inner("test_novel")
    classes = [path for path in subfolders(novel) if path.name != REPEATED]
    if not classes:
        raise layout.error(f"{novel} should hold one folder for each class, such as {min(PAPER_CLASSES)}")
    if len(classes) > N_CLASSES:  # the twelfth would be a second copy of others' frames
        others = ", ".join(path.name for path in classes if path.name not in PAPER_CLASSES)
        raise layout.error(f"{novel} has {len(classes)} classes, published are {N_CLASSES}; look at {others}")
    for images in classes:
        yield from _arrays(layout, images, images.name)


def _arrays(layout: Layout, images: Path, defect_class: str = "", split: str = "") -> Rows:
    for file in layout.images(images):
        if file.suffix.lower() != ".npy":
            raise layout.error(f"{file} is not a .npy array; the published images are")
        yield layout.sample(file, defect_class, split=split, item=file.stem)


SOURCE = Source(
    name="mastcam",
    title="Mastcam",
    obtain="Kerner et al. (2020), https://zenodo.org/records/3732485",
    expected=["train_typical", "test_typical", "test_novel"],
    counts={"": Counts(train=9302, test=426, anomalies=451)},
    split="own",
    rows=_rows,
)
