"""What the benchmarks compute from their measurements, and what they say of them."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from PIL import Image

import growth
from engines import (
    COMPILED,
    DEFAULT,
    ENGINES,
    EXTRACTION,
    REFERENCE,
    Effect,
    conclude,
    describe_extraction,
    difference,
    rows,
)
from feature_networks import full_batches
from general_elpv import KNOWN, SEED, open_cell, read_parameters, take, training_data
from growth_report import ROWS, UNITS, above_linear, draw, exponent, write_report
from killed_study import Killing, try_to_kill
from machine import as_table, cpu_fields, hardware, published, write_page
from mpfm_kedro.pipelines.studies import create_setting
from mpfm_kedro.provenance import code_revision
from peers import describe_coreset, row
from stage_costs import STAGES, START, WHOLE, Period, Sample, costs, stage_of, watch
from study_comparison import compared, largest_difference

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
    compiled = conclude(SECONDS | {COMPILED: 0.01}, EFFECTS | {COMPILED: EFFECTS[DEFAULT]})
    assert compiled.startswith(f"{COMPILED} is 2.00 times as fast as the default, and an option already")
    alone = {name: EFFECTS[name] for name in (REFERENCE, DEFAULT)}
    assert conclude(SECONDS, alone) == "The default stays: no other engine in fp32 is faster."


@pytest.mark.parametrize(("auc", "is_a_loss"), [(0.92, True), (0.93, False), (0.94, False)])
def test_only_a_lower_auc_is_called_a_loss(auc: float, is_a_loss: bool) -> None:
    found = conclude(SECONDS, EFFECTS | {"OpenVINO int8": Effect(0.5, 0.01, (auc, 0.87))})
    assert ("a loss that a default should not have" in found) == is_a_loss


def test_time_of_the_default_coreset_is_extrapolated() -> None:
    found = {"fit": 100.0, "predict": 0.02, "memory": 3e9, "auc": 0.8, "last_step": 72.0}
    assert "about 2.0 hours" in describe_coreset(found, 1131, 0.001)
    assert "886,704 patches" in describe_coreset(found, 1131, 0.001)
    assert describe_coreset("failed", 1131, 0.001) == ""
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


def test_page_of_a_try_is_only_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=0)
    parser.add_argument("--folder", default="here")
    for arguments in (["--images", "9"], ["--folder", "there"]):
        write_page(published(parser, parser.parse_args(arguments), "page.md", "images"), " ".join(arguments))
    assert [file.read_text() for file in tmp_path.rglob("*.md")] == ["--folder there\n"]


def test_costs_belong_to_the_stage_at_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(10_000))
    status = (tmp_path / "file").stat()
    changed, disk = status.st_ctime, 512 * status.st_blocks
    samples = [Sample(changed + second, 100 * (4 - second), 2.0 * second) for second in range(4)]
    periods = [Period(START, changed - 1), Period("features", changed + 1.5), Period(START, changed + 3.5)]
    found = costs(changed - 2, periods, samples, tmp_path)
    assert found["features"] == pytest.approx({"seconds": 2.5, "processor": 2, "memory": 400, "disk": disk}, abs=1e-5)
    assert found[START] == pytest.approx({"seconds": 3, "processor": 4, "memory": 400, "disk": 0}, abs=1e-5)
    assert found[WHOLE] == pytest.approx({"seconds": 5.5, "processor": 6, "memory": 400, "disk": disk}, abs=1e-5)
    assert set(found["training"].values()) == {0}


def test_costs_of_a_run_without_samples_are_its_seconds(tmp_path: Path) -> None:
    found = costs(10.0, [Period(START, 10.2)], [], tmp_path)
    assert found[WHOLE] == pytest.approx({"seconds": 0.2, "processor": 0, "memory": 0, "disk": 0})


def test_every_node_of_a_setting_belongs_to_a_stage() -> None:
    assert {stage_of(node.name) for node in create_setting("general").nodes} == {*STAGES}


def test_watching_ends_with_a_process_that_ends_between_two_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    process = psutil.Process()

    def gone() -> str:
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(process, "status", gone)
    samples: list[Sample] = []
    watch(process, samples)
    assert samples == []


def size(images: int, seconds: float) -> dict:
    """A record of growth: the features take some seconds, all else takes nothing."""
    stages = {stage: dict.fromkeys(UNITS, 0.0) for stage in ROWS}
    stages["features"]["seconds"] = seconds
    about = {"revision": "abc", "date": "2026-01-01", "cores": 3, "memory": 7, "gpu": False}
    return {"images": images, "copies": images // 100, "image_size": 224, "stages": stages} | about


def test_exponent_is_the_slope_of_the_two_largest_sizes() -> None:
    measured = [size(100, 50.0), size(200, 2.0), size(800, 32.0)]
    assert exponent(measured, "features", "seconds") == pytest.approx(2)
    assert above_linear(measured) == "seconds of features"
    assert above_linear([size(200, 2.0), size(800, 8.0)]) == "nothing"
    assert above_linear(measured[:1]) == "not known from one size"
    too_little = [size(100, 0.01), size(200, 0.9)], [size(200, 5.0), size(200, 6.0)], measured[:1]
    assert all(math.isnan(exponent(own, "features", "seconds")) for own in too_little)


def test_page_of_growth_tells_the_machine_of_the_record() -> None:
    text = write_report([size(100, 1.0)], "command")
    assert "2026-01-01, revision abc,\n3 cores, 7 GB of memory, no GPU." in text
    assert "7 GB of memory, a GPU." in write_report([size(100, 1.0) | {"gpu": True}], "command")


def test_a_stage_has_one_colour_in_all_plots_of_growth() -> None:
    record = size(100, 1.0)
    record["stages"]["ingestion"]["seconds"] = record["stages"]["features"]["memory"] = 1.0
    seconds, _, memory, _ = (
        {line.get_label(): line.get_color() for line in axis.lines} for axis in draw([record, record]).axes
    )
    assert "ingestion" in seconds and "ingestion" not in memory  # what takes nothing has no line
    assert seconds["features"] == memory["features"]


def test_size_is_measured_again_by_another_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "write_images", lambda folder, copies, at_most: folder.mkdir(parents=True) or 5)
    monkeypatch.setattr(growth, "run_measured", lambda *arguments: {"new": True})
    given = argparse.Namespace(images=5, image_size=32, folder=tmp_path)
    record = tmp_path / "growth_5_1x_32px.json"
    for revision, is_new in ((code_revision(), False), ("another", True)):
        record.write_text(json.dumps({"revision": revision, "new": False} | hardware()))
        assert growth.measure(1, given)["new"] == is_new
    assert json.loads(record.read_text())["revision"] == code_revision()


def test_copies_of_an_image_differ_and_are_the_same_every_time() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 200, (20, 20), np.uint8))
    first, again = (
        [growth.changed(image, number, np.random.default_rng(number)).tobytes() for number in range(1, 16)]
        for _ in range(2)
    )
    assert first == again
    assert len({image.tobytes(), *first}) == 16


def write_study(out: Path, scores: list[float]) -> Path:
    """Scores and a table of results, as a study has them."""
    table = pd.DataFrame({"run": "a", "method": ["x", "x", "y"], "sample_id": ["1", "2", "1"], "score": scores})
    for name in ("07_model_output/elpv/comparison/scores.parquet", "08_reporting/elpv/table.csv"):
        (out / name).parent.mkdir(parents=True)
    table.to_parquet(out / "07_model_output/elpv/comparison/scores.parquet")
    pd.DataFrame({"auc": [0.5]}).to_csv(out / "08_reporting/elpv/table.csv")
    return out


def test_studies_are_compared_bit_by_bit(tmp_path: Path) -> None:
    here, there = (write_study(tmp_path / name, [0.1, math.nan, math.inf]) for name in ("here", "there"))
    counts = {"feature files": 0, "models": 0, "tables of scores and samples": 1, "tables of results": 1}
    assert largest_difference(here, there) == (2, 3, 0)
    assert compared(here, there) == (counts, [])
    (there / "08_reporting/elpv/table.csv").unlink()
    assert compared(here, there) == (counts, ["08_reporting/elpv/table.csv"])


@pytest.mark.parametrize(("score", "expected"), [(0.5, 0.25), (math.nan, math.inf)])
def test_another_score_is_a_difference(tmp_path: Path, score: float, expected: float) -> None:
    here, there = write_study(tmp_path / "here", [0.25, 1, 2]), write_study(tmp_path / "there", [score, 1, 2])
    for pair in ((here, there), (there, here)):
        assert largest_difference(*pair)[2] == expected
        assert compared(*pair)[1] == ["07_model_output/elpv/comparison/scores.parquet"]


def test_error_of_the_killing_thread_is_kept() -> None:
    class Client:
        def run(self, function: object) -> dict:
            raise OSError("no connection")

    killing = Killing("training of")
    try_to_kill(Client(), killing)  # type: ignore[arg-type]
    assert killing.error == "OSError: no connection"


def test_growth_writes_an_image_and_its_copies(tmp_path: Path) -> None:
    file = tmp_path / "cell.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 200, (20, 20), np.uint8)).save(file)
    target = tmp_path / "good"
    target.mkdir()
    growth.write_copies(file, target, 3)
    assert sorted(each.name for each in target.iterdir()) == ["cell.0.png", "cell.1.png", "cell.2.png"]
    assert (target / "cell.0.png").read_bytes() == file.read_bytes()
