"""From raw files to the sample table: counts, unreadable images, and the split of the normals."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kedro.io import DataCatalog
from PIL import Image
from sklearn.model_selection import train_test_split

from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.parameters import FeatureParameters, IngestionParameters, ProtocolParameters
from mpfm_kedro.pipelines.features import plan_views
from mpfm_kedro.pipelines.ingestion import check_images, list_samples, refuse_wrong_split, split_normals
from mpfm_kedro.protocol.runs import make_general_runs, make_hard_runs
from mpfm_kedro.sources import get_source
from mpfm_kedro.sources.samples import sample, sample_table

CONF = Path(__file__).parents[2] / "conf" / "base"
STRICT = IngestionParameters(**yaml.safe_load((CONF / "parameters_ingestion.yml").read_text())["ingestion"])
FEATURES = FeatureParameters(**yaml.safe_load((CONF / "parameters_features.yml").read_text())["features"])
PROTOCOL = ProtocolParameters(known_class="scratch", n_anomalies=[1, 3], n_seeds=2, first_seed=0, split_by_item=False)
PARTIAL = STRICT.model_copy(update={"allow_partial": True})
LENIENT = STRICT.model_copy(update={"max_unreadable_share": 0.5})


def draw(file: Path, mode: str = "RGB", colour: tuple[int, int, int] = (0, 0, 0)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 4), colour).convert(mode).save(file)


@pytest.fixture
def loader(tmp_path: Path) -> Callable[..., ImageLoader]:
    def make(dataset: str, folder: Path = tmp_path) -> ImageLoader:
        return ImageLoader(dataset, folder, 10**6, tmp_path / "memory" / "files.parquet")

    return make


@pytest.fixture
def own(loader, tmp_path) -> ImageLoader:
    """Twelve normals and six anomalies of each of two classes."""
    for folder, number in (("good", 12), ("dent", 6), ("scratch", 6)):
        for i in range(number):
            draw(tmp_path / "own" / folder / f"{i:02}.png", colour=(len(folder), i, 0))
    return loader("folder", tmp_path / "own")


def ingest(images: ImageLoader, parameters: IngestionParameters) -> pd.DataFrame:
    return split_normals(check_images(list_samples(images, "all", parameters), images, parameters), parameters)


def splits(samples: pd.DataFrame) -> dict[str, str]:
    return samples.set_index("sample_id")["split"].to_dict()


def test_items_of_own_images_are_those_of_their_table(own, tmp_path):
    rows = [f"good/{i:02}.png,part{i // 3}" for i in range(12)]
    (tmp_path / "own/items.csv").write_text("\n".join(["path,item", *rows]))
    listed = list_samples(own, "all", PARTIAL).set_index("sample_id")["item"]
    assert listed.filter(like="good").tolist() == [f"part{i // 3}" for i in range(12)]
    assert listed["dent/00.png"] == "dent/00.png"
    samples = ingest(own, PARTIAL)
    assert samples[samples["label"] == 0].groupby("item")["split"].nunique().tolist() == [1] * 4


def test_the_first_line_names_the_dataset_its_folder_and_the_counts(own, caplog):
    with caplog.at_level(logging.INFO):
        list_samples(own, "all", STRICT, "bolts")
    assert caplog.messages[0] == f"bolts: 12 normal images and 12 anomalies of 2 classes in {own.folder}"


def test_elpv_has_the_published_split(tmp_path, loader):
    pytest.importorskip("elpv_dataset", reason="the package elpv-dataset is not installed")
    images = loader("elpv", get_source("elpv").locate(tmp_path))
    listed = list_samples(images, "all", STRICT)
    samples = split_normals(listed.assign(problem="", content_hash=listed["path"]), STRICT)
    assert samples["split"].value_counts().to_dict() == {"train": 1131, "test": 377, "anomaly": 715}
    assert refuse_wrong_split(samples) is samples


def small_elpv(folder: Path) -> Path:
    lines = []
    for number, (probability, kind) in enumerate([(0, "mono"), (0, "poly"), (1, "mono"), (1, "poly"), (1, "poly")]):
        draw(folder / "images" / f"{number}.png")
        lines.append(f"images/{number}.png {probability} {kind}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder


def test_other_counts_than_published_are_an_error_unless_allowed(tmp_path, loader, caplog):
    images = loader("elpv", small_elpv(tmp_path / "elpv"))
    with pytest.raises(InputError) as raised:
        list_samples(images, "all", STRICT)
    for part in (
        str(tmp_path / "elpv"),
        "2 normal images, published are 1508",
        "1 anomalies of class 'mono', published are 313",
        "2 anomalies of class 'poly', published are 402",
        "allow_partial",
    ):
        assert part in str(raised.value)
    assert len(list_samples(images, "all", PARTIAL)) == 5
    assert "2 normal images, published are 1508" in caplog.text


def mvtec(folder: Path) -> Path:
    for category, defects in (("carpet", ("color", "hole")), ("bottle", ("contamination",))):
        for name in (*(f"train/good/{i}" for i in range(4)), "test/good/000"):
            draw(folder / category / f"{name}.png")
        for defect in defects:
            draw(folder / category / "test" / defect / "000.png")
            draw(folder / category / "ground_truth" / defect / "000_mask.png", "L")
    return folder


def test_one_category_is_chosen_and_an_unknown_one_named(tmp_path, loader):
    images = loader("mvtec_ad", mvtec(tmp_path / "mvtec"))
    assert set(list_samples(images, "all", PARTIAL)["category"]) == {"carpet", "bottle"}
    carpet = list_samples(images, "carpet", PARTIAL)
    assert set(carpet["category"]) == {"carpet"}
    assert carpet.index.tolist() == list(range(len(carpet)))
    with pytest.raises(InputError, match="'carpt' of mvtec_ad; it has: bottle, carpet"):
        list_samples(images, "carpt", PARTIAL)
    with pytest.raises(InputError, match=r"MVTec AD bottle: .* 5 normal images, published are 229; 1 anomalies"):
        list_samples(images, "bottle", STRICT)


def test_unreadable_image_reaches_neither_views_nor_runs(own):
    before = ingest(own, STRICT)
    train, test = (before["sample_id"][before["split"] == split].iloc[0] for split in ("train", "test"))
    victims = {train, test, "dent/02.png"}
    for name in victims:
        (own.folder / name).write_bytes(b"damaged")
    samples = ingest(own, LENIENT)
    assert not victims & set(plan_views(samples, 64, FEATURES)["sample_id"])
    for runs in (make_general_runs(samples, PROTOCOL), make_hard_runs(samples, PROTOCOL)):
        for column in ("train_normals", "known_anomalies", "test_normals", "test_anomalies"):
            assert all(not victims & set(ids) for ids in runs[column])
        train = set(samples["sample_id"][samples["split"] == "train"])
        assert all(set(ids) == train - victims for ids in runs["train_normals"])


def test_too_many_unreadable_images_are_an_error(own, caplog):
    (own.folder / "good" / "03.png").write_bytes(b"damaged")
    with pytest.raises(InputError, match="1 of 24 images") as raised:
        ingest(own, STRICT)
    assert "cannot be read: good/03.png (not an image that can be identified)." in str(raised.value)
    assert not [record for record in caplog.records if record.levelname != "INFO"], "it is said once"
    assert "max_unreadable_share allows 1.0%. Remove or repair them" in str(raised.value)
    (advice,) = re.findall(r"--params=ingestion\.max_unreadable_share=(\S+)", str(raised.value))
    ingest(own, STRICT.model_copy(update={"max_unreadable_share": float(advice)}))


def test_no_readable_image_is_an_error_whatever_is_allowed(own):
    for file in own.folder.glob("*/*.png"):
        file.write_bytes(b"")
    with pytest.raises(InputError, match="There is no readable image in") as raised:
        ingest(own, STRICT.model_copy(update={"max_unreadable_share": 1.0}))
    assert str(own.folder) in str(raised.value)


def test_another_folder_of_the_same_name_is_reported(own, tmp_path, caplog):
    ingest(own, STRICT)
    ingest(own, STRICT)
    assert "are replaced" not in caplog.text
    shutil.copytree(own.folder, tmp_path / "second" / "own")
    ingest(replace(own, folder=tmp_path / "second" / "own"), STRICT)
    assert f"were of {own.folder} before and are replaced; --params=name=" in caplog.text


def save_deep(own: ImageLoader, scale: float, kind: type) -> None:
    """All images again as grey TIFF with the last value of the scale in one of them."""
    for file in sorted(own.folder.rglob("*.png")):
        red = np.asarray(Image.open(file))[..., 0]
        Image.fromarray((red / 7 * scale).astype(kind)).save(file.with_suffix(".tif"), software=str(file))  # differ
        file.unlink()


@pytest.mark.parametrize(
    ("highest", "kind", "expected"),
    [(4000, np.uint16, "0..4095"), (0.9, np.float32, "0..1"), (250, np.int32, "0..255")],
)
def test_deep_images_get_one_range(highest, kind, expected, own, caplog):
    save_deep(own, highest, kind)
    draw(own.folder / "good" / "eight.png")
    with caplog.at_level(logging.INFO):
        samples = ingest(own, STRICT).set_index("sample_id")
    assert samples["pixel_range"].pop("good/eight.png") == ""
    assert set(samples["pixel_range"].drop("good/eight.png", errors="ignore")) == {expected}
    lines = [line for line in caplog.messages if ": scaled" in line]
    assert len(lines) == 1 and f"by the range {expected}" in lines[0] and f"to {highest:g}" in lines[0]
    assert "converted to RGB" not in caplog.text


def test_range_that_was_set_is_used_and_a_wrong_one_named_with_the_values(own):
    save_deep(own, 4000, np.uint16)
    given = STRICT.model_copy(update={"pixel_range": "0..8191"})
    assert set(ingest(own, given)["pixel_range"]) == {"0..8191"}
    for wrong in ("0..1023", "0..65535"):
        with pytest.raises(InputError, match=f"{wrong}.* to 4000 were found"):
            ingest(own, STRICT.model_copy(update={"pixel_range": wrong}))


def checked(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Listed samples as if all images were readable and different."""
    table = sample_table(rows)
    plain = {"width": 6, "height": 4, "pixel_format": "RGB", "problem": "", "dhash": ""}
    return table.assign(**plain, content_hash="hash of " + table["sample_id"])


def normals(number: int) -> pd.DataFrame:
    return checked(sample("folder", f"good/{i}.png", 0) for i in range(number))


@given(number=st.integers(6, 80), order=st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_normals_are_split_three_to_one_over_their_sorted_names(number, order):
    table = normals(number)
    shuffled = list(table.index)
    order.shuffle(shuffled)
    samples = split_normals(table.loc[shuffled].reset_index(drop=True), STRICT)
    train, test = train_test_split(sorted(table["sample_id"]), test_size=0.25, random_state=42)
    assert splits(samples) == dict.fromkeys(train, "train") | dict.fromkeys(test, "test")
    assert len(test) == int(np.ceil(number / 4))


def to_train(samples: pd.DataFrame, which: Any) -> pd.DataFrame:
    return samples.assign(split=samples["split"].mask(which, "train"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda samples: to_train(samples, samples.index == samples["split"].eq("test").idxmax()), "7 to 1 normals is"),
        (lambda samples: samples.replace({"split": {"test": ""}}), "every normal belongs to train or test"),
        (lambda samples: to_train(samples, samples["split"] == "test"), "every normal belongs to train or test"),
        (lambda samples: to_train(samples, samples["label"] == 1), "an anomaly is in the split of the normals"),
    ],
)
def test_catalog_refuses_a_wrong_split_on_disk(change, message, tmp_path):
    validator = f"{refuse_wrong_split.__module__}.{refuse_wrong_split.__name__}"
    entry = {"type": "mpfm_kedro.datasets.tables.TableDataset", "filepath": str(tmp_path / "samples.parquet")}
    catalog = DataCatalog.from_config({"samples": {**entry, "validator": validator}})
    rows = [sample("elpv", f"good/{i}.png", 0) for i in range(8)]
    right = split_normals(checked([*rows, sample("elpv", "bad/0.png", 1, "mono")]), STRICT)
    change(right).to_parquet(tmp_path / "samples.parquet")
    with pytest.raises(Exception, match=message):
        catalog.load("samples")
