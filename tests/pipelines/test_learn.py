"""Images to learn are checked before any is kept, an interrupted run does not count, and the AUC said is MPFM's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.inspection.collection import COLUMNS, Collection
from mpfm_kedro.inspection.model import model_digest
from mpfm_kedro.parameters import IngestionParameters
from mpfm_kedro.pipelines.fit import gather_samples
from mpfm_kedro.pipelines.learn import add_images, summarise_learning
from mpfm_kedro.sources.samples import sample, sample_table

SAMPLES = pd.DataFrame({"content_hash": ["other"], "label": [0]})
INGESTION = IngestionParameters(
    allow_partial=False,
    max_unreadable_share=0.01,
    max_megapixels=0.001,
    pixel_range="auto",
    split_by_item=False,
    drop_duplicates=False,
)


BOTH: Any = SimpleNamespace(card={"guarantee": "", "files": {}, "backbones": [], "pixel_range": ""})


def model(learned: list[dict[str, Any]]) -> Any:
    return SimpleNamespace(card={"pixel_range": "", "learned": learned})


def add(images: Path, before: Collection, learned: list[dict[str, Any]]) -> Collection:
    return add_images(str(images), "anomaly", before, SAMPLES, model(learned), INGESTION)[0]


@pytest.fixture
def empty(tmp_path: Path) -> Collection:
    return Collection(tmp_path / "collection", pd.DataFrame(columns=COLUMNS))


@pytest.mark.parametrize(
    ("pixels", "cut", "problem"),
    [
        (np.zeros((8, 8), np.uint8), 30, ""),
        (np.zeros((8, 8), np.uint16), None, "eight bits"),
        (np.zeros((50, 50), np.uint8), None, "50 x 50 pixels"),
    ],
)
def test_a_folder_with_an_unusable_image_is_refused_and_the_image_named(
    empty: Collection, tmp_path: Path, pixels: np.ndarray, cut: int | None, problem: str
):
    images = tmp_path / "new"
    images.mkdir()
    Image.new("L", (8, 8)).save(images / "a.png")
    Image.fromarray(pixels).save(images / "bad.png")
    (images / "bad.png").write_bytes((images / "bad.png").read_bytes()[:cut])
    with pytest.raises(InputError, match=rf"bad\.png cannot be used: .*{problem}"):
        add(images, empty, [])


@pytest.mark.parametrize(("auc", "said"), [(0.75, "0.750, 0.900"), (np.nan, "undefined, 0.900")])
def test_the_auc_before_and_after_is_that_of_mpfm(auc: float, said: str):
    methods = ["MPFM", "MPFM, no anomaly known"]
    metrics = pd.DataFrame(
        {"run": ["before"] * 2 + ["after"] * 2, "method": methods * 2, "auc": [auc, 0.5, 0.9, 0.5]},
    )
    columns = [
        "path",
        "taught",
        "like_taught",
        "decision_before",
        "decision_after",
        "decision_held_out",
        "p_value_after",
    ]
    rows = [
        ["taught.png", "anomaly", True, "good", "uncertain", "good", 0.2],
        ["hidden.png", "anomaly", False, "good", "good", "good", 0.3],
        ["alike.png", "", True, "good", "uncertain", "", 0.2],
        ["other.png", "", False, "good", "good", "", 0.2],
    ]
    text = summarise_learning(
        BOTH, BOTH, pd.DataFrame(rows, columns=columns), metrics, {model_digest(BOTH.card): "undo"}
    )
    assert "  good → uncertain (held out: good)  taught.png" in text
    assert "hidden.png stays good" in text and "30 % of them" in text and "taught.png stays" not in text
    assert "Other images that look like a taught defect: 1; good before: 1, good now: 0" in text
    assert "Of 2 earlier predictions, 1 change" in text and text.endswith("To undo: undo")
    assert f"AUC of the general setting, without and with all learned images: {said}" in text


@pytest.mark.parametrize(("pattern", "items"), [(r"(part\d)_", ["part1", "part2", "part2"]), ("auto", [None] * 3)])
def test_a_learned_photo_belongs_to_the_item_that_its_first_name_says(pattern, items, empty, tmp_path):
    samples = []
    for number, name in enumerate(["part1_a.png", "part2_a.png"]):
        noise = np.random.default_rng(number).integers(0, 256, (16, 16), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / name)
        samples.append(sample("own", name, 0, item=str(items[number] or ""), split="train"))
    images = ImageLoader("folder", tmp_path, 10**6, tmp_path / "files.parquet")
    known = sample_table(samples)
    known = pd.concat([known, images.examine_all(known["path"].tolist(), 1).reset_index(drop=True)], axis=1)
    Image.fromarray(noise.T.copy()).save(tmp_path / "part2_b.png")
    collection = empty.add([tmp_path / "part2_b.png"], "anomaly", known)
    empty.folder.mkdir()
    for file, content in collection.new.items():
        (empty.folder / file).write_bytes(content)
    ingestion = INGESTION.model_copy(update={"item_pattern": pattern, "split_by_item": "auto", "max_megapixels": 1})
    gathered = gather_samples(known.assign(pixel_range=""), collection, images, ingestion)
    assert gathered["item"].tolist() == [item or name for item, name in zip(items, gathered["sample_id"], strict=True)]
