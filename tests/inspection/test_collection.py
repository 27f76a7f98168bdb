"""What a model is taught: labels that do not contradict each other."""

import os

import pandas as pd
import pytest
from PIL import Image

from mpfm_kedro.datasets.inspection import CollectionDataset
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.inspection.model import FORMAT, write_card

SAMPLES = pd.DataFrame({"content_hash": ["other"], "label": [0]})


@pytest.fixture
def dataset(tmp_path):
    return CollectionDataset(str(tmp_path / "collection"))


@pytest.fixture
def files(tmp_path):
    found = []
    for number in range(3):
        found.append(tmp_path / f"{number}.PNG")
        Image.new("L", (8, 8), 50 * number).save(found[-1])
    return found


def test_images_are_kept_with_their_labels(dataset, files, tmp_path):
    dataset.save(dataset.load().add(files[:2], "anomaly", SAMPLES))
    dataset.save(dataset.load().add(files[2:], "normal", SAMPLES))
    for file in files:
        file.unlink()
    collection = dataset.load()
    assert collection.table["label"].tolist() == [1, 1, 0] and collection.new == {}
    samples = collection.samples("own", "", ImageLoader("own", tmp_path, 10**6, tmp_path / "memory.parquet"))
    assert samples.set_index("label")["split"].to_dict() == {0: "train", 1: "anomaly"}
    assert set(samples["defect_class"]) == {"", "learned"} and (samples["width"] == 8).all()


def test_an_image_that_was_marked_in_the_app_has_its_name_there(dataset, files, tmp_path):
    for name in ("to_learn/learning/anomaly", "learning"):
        marked = tmp_path / name / f"{24 * 'a'}-dark spot-1.png"
        marked.parent.mkdir(parents=True)
        marked.write_bytes(files[0].read_bytes())
        collection = dataset.load().add([marked], "anomaly", SAMPLES)
        assert collection.table["origin"][0] == ("dark spot-1.png" if "to_learn" in name else str(marked))


@pytest.mark.parametrize(("first", "second"), [("anomaly", "normal"), ("normal", "anomaly")])
def test_an_image_has_one_label(dataset, files, first, second):
    collection = dataset.load().add(files[:1], first, SAMPLES)
    with pytest.raises(InputError, match=f"0.PNG is already known, as {first}"):
        collection.add(files[:1], second, SAMPLES)


def test_an_image_of_the_dataset_has_its_label(dataset, files):
    known = dataset.load().add(files[:1], "normal", SAMPLES).table
    with pytest.raises(InputError, match="already known, as normal"):
        dataset.load().add(files[:1], "anomaly", known)


def test_what_is_known_is_not_learned_twice(dataset, files):
    collection = dataset.load().add(files[:1], "anomaly", SAMPLES)
    assert len(collection.add(files[:2], "anomaly", SAMPLES).table) == 2
    with pytest.raises(InputError, match="Nothing to learn"):
        collection.add(files[:1], "anomaly", SAMPLES)


def test_a_changed_image_is_refused(dataset, files, tmp_path):
    dataset.save(dataset.load().add(files[:2], "anomaly", SAMPLES))
    collection = dataset.load()
    loader = ImageLoader("own", tmp_path, 10**6, tmp_path / "memory.parquet")
    collection.samples("own", "", loader)
    file = collection.folder / collection.table["file"][0]
    status, content = file.stat(), bytearray(file.read_bytes())
    content[-1] ^= 1  # a bit, as on a disk that decays: size and date stay
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(InputError, match="checksum mismatch"):
        collection.samples("own", "", loader)


def test_an_interrupted_run_leaves_what_the_model_has_learned(dataset, files, tmp_path):
    dataset.save(dataset.load().add(files[:1], "anomaly", SAMPLES))
    card = {"format": FORMAT, "learned": dataset.load().table.to_dict("records")}
    (tmp_path / "model").mkdir()
    write_card(card, tmp_path / "model")
    dataset.save(dataset.load().add(files[1:], "anomaly", SAMPLES))  # then the run is killed
    before = CollectionDataset(str(tmp_path / "collection"), model=str(tmp_path / "model"))
    assert before.load().table["origin"].tolist() == [str(files[0])]
    assert len(before.load().add(files[1:], "anomaly", SAMPLES).table) == 3  # can be learned again
    write_card(card | {"format": 1}, tmp_path / "model")  # of an earlier version of the project: nothing is lost
    assert len(before.load().table) == 3
