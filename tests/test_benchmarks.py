"""What the benchmarks of engines and peers compute from their measurements."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engines import DEFAULT, ENGINES, EXTRACTION, REFERENCE, Effect, conclude, describe_extraction, difference, rows
from feature_networks import full_batches
from general_elpv import KNOWN, SEED, open_cell, read_parameters, take, training_data
from machine import as_table, cpu_fields
from peers import describe_coreset, row

SECONDS = {REFERENCE: 0.024, DEFAULT: 0.02, "OpenVINO fp32": 0.016, "OpenVINO int8": 0.005, EXTRACTION: 0.025}
EFFECTS = {
    REFERENCE: Effect(0, 0, (0.931, 0.88)),
    DEFAULT: Effect(1e-5, 1e-7, (0.93, 0.88)),
    "OpenVINO fp32": Effect(2e-5, 1e-7, (0.93, 0.88)),
    "OpenVINO int8": Effect(0.5, 0.01, (0.92, 0.87)),
}
MISSING = {name: "not installed" for name in ENGINES if name not in EFFECTS}


def test_difference_is_relative_to_the_size_of_each_statistic() -> None:
    reference = np.array([[1.0, 100.0, 0.0], [3.0, 300.0, 0.0]])
    assert difference(reference + [0.2, 2.0, 0.0], reference) == pytest.approx((0.1, 0.055))


def test_every_batch_is_full_and_every_image_in_its_place() -> None:
    images = torch.arange(7)
    found = list(full_batches(images, 3))
    assert [len(batch) for _, batch in found] == [3, 3, 3]
    assert torch.cat([batch[: place.stop - place.start] for place, batch in found]).tolist() == images.tolist()


def test_table_has_every_engine_and_says_which_are_missing() -> None:
    found = rows(SECONDS, EFFECTS, MISSING)
    assert [row[0] for row in found] == list(ENGINES)
    assert {len(row) for row in found} == {7}
    by_name = {name: own for name, *own in found}
    assert by_name["OpenVINO int8"] == ["5.0", "1.00", "5.0e-01", "1.0e-02", "0.9200", "0.8700"]
    assert by_name["onnxruntime fp32"][0] == "not installed"


def test_extraction_is_compared_with_the_default_and_the_fastest() -> None:
    text = describe_extraction(SECONDS)
    assert "0.80 of the speed of the default" in text
    assert "0.20 of that of the fastest engine (OpenVINO int8)" in text


def test_conclusion_follows_from_the_measurement() -> None:
    assert "OpenVINO fp32 is only 1.25 times as fast" in conclude(SECONDS, EFFECTS)
    assert "OpenVINO int8 is 4.00 times as fast with other features (AUC of MPFM -0.0100)" in conclude(SECONDS, EFFECTS)
    assert conclude(SECONDS | {"OpenVINO fp32": 0.01}, EFFECTS).startswith("OpenVINO fp32 is 2.00 times as fast")
    alone = {name: EFFECTS[name] for name in (REFERENCE, DEFAULT)}
    assert conclude(SECONDS, alone) == "The default stays: no other engine in fp32 is faster."


def test_time_of_the_default_coreset_is_extrapolated() -> None:
    found = {"fit": 100.0, "predict": 0.02, "memory": 3e9, "auc": 0.8, "last_step": 72.0}
    assert "about 2.0 hours" in describe_coreset(found, 1131, 0.001)
    assert "886,704 patches" in describe_coreset("failed", 1131, 0.001)
    assert row("PatchCore", found) == ["PatchCore", "100.0", "20.0", "3.0", "0.800"]
    assert row("PatchCore", "no memory")[1] == "failed: no memory"


def test_processor_and_table_are_readable() -> None:
    assert cpu_fields("model name\t: A\nflags\t\t: avx2 sse\n\nmodel name\t: B\n") == {
        "model name": "A",
        "flags": "avx2 sse",
    }
    assert as_table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_cell_is_that_of_a_development_seed() -> None:
    cell = open_cell(read_parameters(), 300)
    learned = {*cell.normals, *cell.anomalies[:KNOWN]}
    assert cell.run["seed"] == SEED >= 100
    assert len(cell.anomalies) == 4 * KNOWN
    assert not learned & set(cell.tested)
    assert set(cell.views.iloc[cell.anomalies]["sample_id"]) == set(cell.run["known_anomalies"])


def test_views_of_an_anomaly_have_its_number_where_fewer_are_known() -> None:
    pooled, maps = np.zeros((12, 2)), np.zeros((12, 1, 1, 1))
    data = training_data(take(pooled, maps, np.arange(6)), take(pooled, maps, np.arange(6, 12)), 3)
    assert data.anomalies.source.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.n_known == 3
