"""Datasets: one file each, one name each in this registry."""

from importlib import import_module

import pandas as pd

from mpfm_kedro.errors import unknown
from mpfm_kedro.sources.source import Source

NAMES = ["mvtec_ad", "optical", "sdd", "aitex", "elpv", "mastcam", "hyper_kvasir", "brainmri", "headct"]
NAMES += ["folder", "synthetic"]  # a user's own images, and those to try the project with
SOURCES: dict[str, Source] = {name: import_module(f"{__name__}.{name}").SOURCE for name in NAMES}


def source_of(samples: pd.DataFrame) -> Source:
    """The source of a sample table; own images carry the name of their folder."""
    return SOURCES.get(str(samples["dataset"].iloc[0]), SOURCES["folder"])


def splits_by_item(samples: pd.DataFrame, choice: bool | str) -> bool:
    """Whether no item may both train and be tested; ``auto``: with own images. Published splits are by image."""
    return source_of(samples).name == "folder" if choice == "auto" else bool(choice)


def get_source(name: str) -> Source:
    """The source called ``name``; an unknown name is an error with the nearest one."""
    if name not in SOURCES:
        raise unknown("dataset", name, SOURCES)
    return SOURCES[name]
