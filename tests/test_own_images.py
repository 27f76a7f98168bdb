"""A user's own folder of images, from the raw files to the report, in the test environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from PIL import Image

from mpfm_kedro.cli import cli
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.inspector import Inspector
from running import PROJECT
from running import run as run_pipeline


def draw(folder: Path, number: int, defect: bool, depth: str = "eight") -> None:
    """Stripes with noise, and a bright block as the defect; of eight bits, or of twelve in a PNG of sixteen."""
    rng = np.random.default_rng([number, defect])
    pixels = np.clip(120 + 40 * np.sin(np.arange(64) / 3) + rng.normal(0, 12, (64, 64)), 0, 220)
    if defect:
        top, left = rng.integers(0, 48, 2)
        pixels[top : top + 16, left : left + 16] = 255
    eight = np.rint(pixels).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    values = eight if depth == "eight" else np.rint(eight / 255 * 4095).astype(np.uint16)
    Image.fromarray(values).save(folder / f"{number:02}.png")


def make(folder: Path, normals: int = 16, defects: int = 6, depth: str = "eight") -> Path:
    for number in range(normals):
        draw(folder / "good", number, False, depth)
    for number in range(defects):
        draw(folder / "dent" / "batch", number, True, depth)
    return folder


def run(tmp_path: Path, folder: Path, pipeline: str = "general_setting", **parameters: Any) -> Path:
    return run_pipeline(
        pipeline, tmp_path, **{"dataset": "folder", "data_root": str(folder), "n_seeds": 1} | parameters
    )


def scores(out: Path, name: str) -> pd.DataFrame:
    table = pd.read_parquet(out / "07_model_output" / name / "general" / "scores.parquet")
    return table.drop(columns="dataset")


def test_deep_images_and_eight_bits_give_the_same_scores_under_names_of_their_own(tmp_path):
    found = {}
    for depth, pixel_range in (("eight", ""), ("twelve", "0..4095")):
        folder = make(tmp_path / f"parts {depth}", depth=depth)
        out = run(tmp_path, folder, features={"cutmix_views": 0})
        run(tmp_path, folder, "fit", features={"cutmix_views": 0})
        found[depth] = scores(out, f"parts_{depth}")
        samples = pd.read_parquet(out / "02_intermediate" / f"parts_{depth}" / "samples.parquet")
        assert set(samples["pixel_range"]) == {pixel_range}
        summary = pd.read_csv(out / "08_reporting" / f"parts_{depth}" / "general" / "summary.csv")
        assert set(summary["dataset"]) == {f"parts_{depth}"}
        assert set(summary["n_anomalies"]) == {3}
    pd.testing.assert_frame_equal(found["twelve"], found["eight"])
    names = {"parts_eight", "parts_twelve"}
    for layer in ("02_intermediate", "06_models", "08_reporting", "versions"):
        assert {path.name for path in (out / layer).iterdir()} >= names
    listed = CliRunner().invoke(cli, ["versions", "list", "--output-root", str(out)]).output
    assert all(name in listed for name in names)
    (version,) = (path.name for path in (out / "versions/parts_twelve/production/model").iterdir())
    cards = {name: out / "06_models" / name / "production/model/card.json" for name in names}
    made = {name: card.read_text() for name, card in cards.items()}
    for card in cards.values():
        card.write_text("{}")
    used = CliRunner().invoke(
        cli, ["versions", "use", "parts_twelve", version, "--output-root", str(out), "--env", "test"]
    )
    assert used.exit_code == 0, used.output
    assert f"parts_twelve: restored production model {version}" in used.output
    assert cards["parts_twelve"].read_text() == made["parts_twelve"]
    assert cards["parts_eight"].read_text() == "{}"


@pytest.mark.filterwarnings("error::RuntimeWarning", "error:No artists with labels:UserWarning")
def test_good_images_alone_give_the_closed_form(tmp_path):
    out = run(tmp_path, make(tmp_path / "good_only", defects=0), n_anomalies=10)
    reporting = out / "08_reporting/good_only/general"
    summary = pd.read_csv(reporting / "summary.csv", keep_default_na=False)
    assert summary["method"].tolist() == ["MPFM, no anomaly known"]
    assert summary["n_anomalies"].tolist() == [0]
    assert summary["auc_mean"].tolist() == [""]
    assert json.loads((reporting / "metrics.json").read_text()) == {}
    assert len(pd.read_parquet(out / "07_model_output/good_only/general/modes.parquet")) > 0
    page = (reporting / "report.html").read_text()
    assert "AUC and AP are undefined" in page and "normals with the highest scores" in page
    assert page.count("<figcaption><a href=") == 4, "normals are shown"
    assert "ROC" not in page and "score_a</figcaption>" not in page
    assert scores(out, "good_only")["score"].notna().all()
    models = out / "06_models/good_only"
    (trial,) = pd.read_parquet(models / "general/models.parquet").to_dict("records")
    assert trial["training"] == "" and not (models / "training").exists()
    for stage in ("prototypes", "calibration"):
        assert (models / stage / f"{trial[stage]}.safetensors").is_file()


def test_no_known_defect_is_a_setting_where_defects_exist(tmp_path):
    out = run(tmp_path, make(tmp_path / "parts"), n_anomalies=0)
    assert scores(out, "parts").groupby("method")["label"].sum().to_dict() == {"MPFM, no anomaly known": 3}
    (row,) = pd.read_csv(out / "08_reporting/parts/general/summary.csv").to_dict("records")
    assert row["n_anomalies"] == 0 and 0.5 < row["auc_mean"] <= 1
    assert "counts nothing" not in (out / "08_reporting/parts/general/summary.txt").read_text()


def test_hundreds_of_known_defects_are_learned(tmp_path):
    folder = make(tmp_path / "parts", normals=24, defects=600)
    own: dict[str, Any] = {"image_size": 32, "features": {"cutmix_views": 0, "anomaly_views": []}}
    own |= {"ingestion": {"item_pattern": "(.*)"}, "n_anomalies": 300}
    summary = run(tmp_path, folder, **own) / "08_reporting/parts/general/summary.csv"
    shown = pd.read_csv(summary).set_index("method")
    assert shown.loc["MPFM", "n_anomalies"] == 300 and shown.loc["MPFM", "auc_mean"] > 0.9
    out = run(tmp_path, folder, "fit", **own)
    card = json.loads((out / "06_models/parts/production/model/card.json").read_text())
    assert card["data"]["anomalies"] == 600 and "of 600 known defects are missed" in card["guarantee"]


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_single_defect_is_tested_and_folders_and_classes_may_be_called_by_numbers(tmp_path):
    folder = make(tmp_path / "2024", defects=1)
    (folder / "dent").rename(folder / "007")
    out = run(tmp_path, folder)
    assert scores(out, "2024")["label"].sum() == 1
    summary = pd.read_csv(out / "08_reporting/2024/general/summary.csv", dtype={"dataset": str})
    assert set(summary["dataset"]) == {"2024"} and summary["auc_mean"].between(0, 1).all()


def test_name_of_a_published_dataset_is_refused(tmp_path):
    with pytest.raises(InputError, match="'name' = 'elpv'"):
        run(tmp_path, make(tmp_path / "parts"), name="elpv")
    assert not (tmp_path / "out").exists()


def test_undefined_precision_and_names_of_digits_survive_their_files(tmp_path):
    bootstrap_project(PROJECT)
    with KedroSession.create(PROJECT, runtime_params={"output_root": str(tmp_path)}) as session:
        catalog = session.load_context().catalog
    point = {"run": "007-M1-seed0", "known_class": "007", "n_anomalies": 1, "guaranteed": 0.1, "false_alarms": 0.0}
    points = pd.DataFrame([point | {"precision": np.nan, "recall": 0.5}] * 2)
    others = ("history", "modes", "sampled_features", "groups", "mistakes", "both_labels")
    catalog.save("hard_description", {"operating_points": points} | dict.fromkeys(others, points))
    points = catalog.load("hard_description")["operating_points"]
    assert points["known_class"].tolist() == ["007", "007"] and points["precision"].isna().all()
    row = {"dataset": "2024", "known_class": "1", "category": "02"}
    runs = pd.DataFrame([row | {"run": "007", "auc": np.nan}])
    others = ("summary", "tested_classes", "differences", "without_repeats")
    catalog.save("hard_evaluation", {"run_metrics": runs} | dict.fromkeys(others, pd.DataFrame([row])))
    catalog.save("comparison_summary", pd.DataFrame([row]))
    catalog.save("comparison_run_metrics", runs)
    evaluation = catalog.load("hard_evaluation")
    for summary in (evaluation["summary"], catalog.load("comparison_summary")):
        assert summary.to_dict("records") == [row]
    for measured in (evaluation["run_metrics"], catalog.load("comparison_run_metrics")):
        pd.testing.assert_frame_equal(measured, runs)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("defects", [0, 2])
def test_a_production_model_is_made_of_few_known_defects_or_none(tmp_path, defects):
    folder = make(tmp_path / "parts", normals=24, defects=defects)
    out = run(tmp_path, folder, "fit")
    inspector = Inspector.load(out / "06_models/parts/production/model", "cpu")
    assert inspector.card["data"]["anomalies"] == defects and len(inspector.normal_scores) == 24
    for number in range(6):
        draw(tmp_path / "new/good", 100 + number, False)
        draw(tmp_path / "new/dent", 100 + number, True)
    good, dented = (
        [own.score for own in inspector.predict_many(sorted((tmp_path / "new" / kind).iterdir()))]
        for kind in ("good", "dent")
    )
    assert np.isfinite([*good, *dented]).all() and np.median(dented) > max(good)


def test_photos_of_a_part_are_one_item_from_the_split_to_the_guarantee(tmp_path):
    folder = tmp_path / "parts"
    for number in range(12):
        for photo in range(1 + number % 4):
            draw(folder / "good" / f"part{number}", photo + 10 * number, False)
    for number in range(6):
        draw(folder / "dent" / f"part{number}", number, True)
    ingestion = {"item_pattern": r"(part\d+)/"}
    out = run(tmp_path, folder, "fit", ingestion=ingestion)
    samples = pd.read_parquet(out / "02_intermediate" / "parts" / "samples.parquet")
    normals = samples[samples["label"] == 0]
    assert normals.groupby("item")["split"].nunique().eq(1).all() and normals["item"].nunique() == 12
    card = json.loads((out / "06_models" / "parts" / "production" / "model" / "card.json").read_text())
    assert card["data"]["normals"] == len(normals) == 30 and card["threshold"]["n_normals"] == 12
    assert "12 held-out normal items" in card["guarantee"]
    assert (out / "08_reporting" / "parts" / "duplicate_sheet.png").is_file()
    run(tmp_path, folder, ingestion=ingestion)
    (learned,) = pd.read_parquet(out / "05_model_input" / "parts" / "general" / "runs.parquet").to_dict("records")
    item = samples.set_index("sample_id")["item"]
    trained = {*item[learned["train_normals"]], *item[learned["known_anomalies"]]}
    assert not trained & {*item[learned["test_normals"]], *item[learned["test_anomalies"]]}
    scores = pd.read_parquet(out / "07_model_output/parts/general/scores.parquet").query("method == 'MPFM'")
    (point,) = pd.read_parquet(out / "07_model_output/parts/general/operating_points.parquet").to_dict("records")
    for label, share in ((0, point["false_alarms"]), (1, point["recall"])):
        n_items = item[scores["sample"][scores["label"] == label]].nunique()
        assert share * n_items == pytest.approx(round(share * n_items)), "an item counts once"
    assert "Good and defective at once" not in (out / "08_reporting/parts/general/report.html").read_text()


def test_a_part_that_is_known_as_good_and_as_defect_is_shown_in_the_report(tmp_path):
    folder = make(tmp_path / "parts", normals=12, defects=4)
    (folder / "dent/batch/01.png").write_bytes((folder / "good/05.png").read_bytes())
    page = (run(tmp_path, folder) / "08_reporting/parts/general/report.html").read_text()
    assert "Good and defective at once" in page and "<br>dent/batch/01.png = good/05.png</p>" in page


@pytest.mark.parametrize("defects", [0, 4, 9])
def test_a_model_is_made_from_any_number_of_known_defects_and_learns_more_one_by_one(tmp_path, defects: int):
    folder, own = make(tmp_path / "parts", defects=defects), {"ingestion": {"item_pattern": "(.*)"}}
    for learned in range(4 if defects == 0 else 2):
        if learned:
            draw(tmp_path / f"missed{learned}", 99 - learned, True)
            own |= {"images": str(tmp_path / f"missed{learned}"), "label": "anomaly"}
        out = run(tmp_path, folder, "learn" if learned else "fit", **own)
        card = json.loads((out / "06_models/parts/production/model/card.json").read_text())
        known = defects + learned
        assert card["data"]["anomalies"] == known
        held_out = known if known > 1 else 0  # the only one is learned by all models of cross-fitting
        assert {row["n_anomalies"] for row in card["misses"] if not row["defect_class"]} == {held_out} - {0}
    assert f"missed{learned}/" in (out / "08_reporting/parts/learning/summary.txt").read_text()


def test_proportions_are_kept_on_request(tmp_path):
    """Wide images: each box is where the defect is, in pixels of the file."""
    folder, rng, defects = tmp_path / "wide", np.random.default_rng(0), {}
    for kind, number in (("good", 24), ("dent", 6)):
        (folder / kind).mkdir(parents=True)
        for i in range(number):
            pixels = np.clip(rng.normal(120, 12, (48, 160)), 0, 220)
            if kind == "dent":
                left = int(rng.integers(0, 140))
                pixels[14:34, left : left + 20] = 255
                defects[folder / kind / f"{i}.png"] = left
            Image.fromarray(np.rint(pixels).astype(np.uint8)).save(folder / kind / f"{i}.png")
    out = run(tmp_path, folder, "fit", features={"keep_proportions": True})
    assert "padded" in (out / "08_reporting/wide/production/card.html").read_text()
    inspector = Inspector.load(out / "06_models/wide/production/model", "cpu")
    inside = []
    for file, left in defects.items():
        regions = inspector.predict(file).regions
        box = regions[0].box if regions else (0, 0, 0, 0)
        inside.append(box[0] < left + 20 and left < box[2] and box[1] < 34 and box[3] > 14)
    assert sum(inside) >= 5
