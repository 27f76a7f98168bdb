from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.model import Gallery
from production_models import held_out_scores, made_image, made_model


def test_shares_are_sums_over_all_backbones():
    inspector = Inspector(made_model(("resnet18", 64), ("resnet18", 48)), "cpu")
    prediction = inspector.predict(made_image(np.random.default_rng(0), defect=True))
    assert sum(prediction.shares.values()) == pytest.approx(prediction.score)


def test_rarity_is_capped_by_the_number_of_good_images():
    held_out = held_out_scores(np.arange(100.0), np.array([3.0]))
    assert held_out.describe_parts({"g": 1e9, "a": 97.0, "r": 50.0, "n": -1e9}) == {
        "g": "higher than any of 100 good images",
        "a": "about 1 in 33 good images scores so high",
        "r": "about 1 in 2 good images scores so high",
        "n": "lower than any of 100 good images",
    }
    assert held_out.describe_parts({"a": 40.0, "n": 99.0}) == {
        "a": "most good images score so high",
        "n": "most good images score so low",
    }


def test_the_nearest_images_of_the_gallery_are_found():
    model = made_model()
    rng = np.random.default_rng(0)
    z = rng.normal(scale=rng.uniform(0.5, 3, (40, 1)), size=(40, model.card["backbones"][0]["pooled_size"]))
    names = [f"{i}" for i in range(40)]
    classes = np.where(np.arange(40) % 4 == 0, "spot", "")
    table = pd.DataFrame({"sample_id": names, "defect_class": classes, "thumbnail": b"jpeg"})
    inspector = Inspector(replace(model, gallery=Gallery(table, z.astype(np.float32))), "cpu")
    prediction = inspector.predict(made_image(rng))
    normals, anomalies = inspector.explain(prediction, nearest=3)
    distance = np.sqrt(np.square(z - prediction.z).mean(1))
    order = np.argsort(distance)
    expected = [i for i in order if classes[i] == ""][:3], [i for i in order if classes[i]][:1]
    for found, places in zip((normals, anomalies), expected, strict=True):
        assert [own.sample_id for own in found] == [names[i] for i in places]
        assert [own.distance for own in found] == pytest.approx(distance[places], rel=1e-4)
        assert {own.defect_class for own in found} == {classes[places[0]]}
