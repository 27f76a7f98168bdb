import re

import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.sources.mvtec_ad import CATEGORIES, SOURCE


def test_published_counts():
    counts = SOURCE.counts.values()
    assert sum(count.train for count in counts) == 3629
    assert sum(count.test for count in counts) == 467
    assert sum(count.anomalies for count in counts) == 1258
    assert sum(len(classes.split()) for _, classes in CATEGORIES.values()) == 73


def test_each_category_has_its_split_classes_and_masks(build):
    table = SOURCE.list_samples(build("mvtec_ad"))
    normal = table[table["label"] == 0]
    sizes = normal.groupby(["category", "split"]).size().to_dict()
    assert sizes == {
        ("carpet", "test"): 1,
        ("carpet", "train"): 2,
        ("toothbrush", "test"): 1,
        ("toothbrush", "train"): 2,
    }
    anomalies = table[table["label"] == 1].set_index("path")
    assert anomalies["defect_class"].to_dict() == {
        "carpet/test/color/000.png": "color",
        "carpet/test/hole/000.png": "hole",
        "toothbrush/test/defective/000.png": "defective",
    }
    assert anomalies["mask_path"]["carpet/test/hole/000.png"] == "carpet/ground_truth/hole/000_mask.png"
    assert (anomalies["split"] == "").all()


def test_missing_mask_is_named(build, draw):
    folder = build("mvtec_ad")
    image = draw(folder / "carpet" / "test" / "hole" / "001.png")
    with pytest.raises(InputError, match=rf"{re.escape(str(image))} has no mask.*001_mask\.png"):
        SOURCE.list_samples(folder)
