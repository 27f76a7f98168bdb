"""Text, figures and the page: complete, with the numbers, also where there is little to show."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from evaluation.synthetic_trials import evaluated, text_of, trial_costs, trial_scores
from html_page import Page
from mpfm_kedro.detectors.mpfm.objective import Losses
from mpfm_kedro.evaluation.columns import PART_COLUMNS, TRAINED, UNTRAINED
from mpfm_kedro.evaluation.intervals import paired_differences, recall_intervals
from mpfm_kedro.evaluation.measures import measure_trials, summarise_setting, summarise_tested_classes
from mpfm_kedro.inspection.mistakes import COLUMNS, POINTS
from mpfm_kedro.reports import figures
from mpfm_kedro.reports.model import name_uncounted
from mpfm_kedro.reports.setting import conclusions, write_report, write_summary

METHODS = [TRAINED, UNTRAINED]


def results(
    classes: tuple[str, ...] = ("dent",), numbers: tuple[int, ...] = (10,), n_normals: int = 100
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores and metrics of two seeds: of the hard setting for several classes, else of the general one."""
    strength = {TRAINED: 2.0, UNTRAINED: 1.0}
    scores = trial_scores(strength, classes, numbers=numbers, n_seeds=2, n_normals=n_normals, n_anomalies=30)
    scores = scores[scores["setting"] == ("hard" if len(classes) > 1 else "general")].reset_index(drop=True)
    scores[PART_COLUMNS] = np.random.default_rng(0).normal(size=(len(scores), 4))
    return scores, measure_trials(scores)


def history(n_epochs: int) -> pd.DataFrame:
    terms = [*Losses._fields, "total", "used_prototypes", "information_share"]
    rows = [
        {"run": run, "epoch": epoch + 1} | {term: float(i + epoch) for i, term in enumerate(terms)}
        for run in ("a", "b")
        for epoch in range(n_epochs)
    ]
    return pd.DataFrame(rows, columns=None if rows else ["run", "epoch"])


def described(history: pd.DataFrame, **more: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What models tell; without ``more`` nothing but their history."""
    columns = {"groups": ["size", "image"], "both_labels": ["samples", "image"]}
    columns |= {"sampled_features": ["kind", "first", "second"]}
    columns |= {"mistakes": [*COLUMNS, "link"], "operating_points": POINTS}
    return {"history": history, **{name: pd.DataFrame(columns=names) for name, names in columns.items()}, **more}


def page_of(scores: pd.DataFrame, metrics: pd.DataFrame, n_epochs: int = 0, **more: pd.DataFrame) -> str:
    return write_report(scores, evaluated(metrics, **more), described(history(n_epochs)))


def figure_of(name: str, scores: pd.DataFrame, metrics: pd.DataFrame, n_epochs: int = 3) -> Figure:
    tables = described(history(n_epochs))
    panels = figures.list_panels(
        scores, figures.tabulate_roc_curves(scores, metrics), tables["history"], tables["sampled_features"]
    )
    return figures.draw_side_by_side(panels[name])


def test_pixel_measures_are_shown_where_there_are_masks():
    scores, metrics = results()
    assert "AUPRO" not in text_of(metrics)
    assert "AUPRO" not in page_of(scores, metrics)
    has_maps = metrics["method"] == "MPFM"
    for name, value in {"pixel_auroc": 0.91, "aupro": 0.82, "pixel_f1": 0.43}.items():
        metrics[name] = np.where(has_maps, value, np.nan)
    header, first, second, *_ = text_of(metrics).splitlines()
    assert re.search(r"recall at 5 % +pixel AUC +AUPRO +pixel F1 +seeds", header)
    assert "0.910 ± 0.000 0.820 ± 0.000 0.430 ± 0.000" in first
    assert "nan" not in second
    report = page_of(scores, metrics)
    for label in ("pixel AUC", "AUPRO", "pixel F1"):
        assert f"<th>{label}</th>" in report and f"<dt>{label}</dt>" in report, "shown and explained"


def visible(figure: Figure) -> list:
    return [axis for axis in figure.axes if axis.get_visible()]


@pytest.mark.parametrize(("classes", "numbers", "n_panels"), [(("a",), (10,), 1), (("a", "b", "c"), (10, 1), 6)])
def test_roc_curves_have_one_panel_per_cell(classes, numbers, n_panels):
    scores, metrics = results(classes, numbers)
    figure = figure_of("roc_curves", scores, metrics)
    panels = visible(figure)
    assert len(panels) == n_panels
    for panel in panels:
        *_, untrained, trained = panel.lines  # over the diagonal
        assert trained.get_color() != untrained.get_color() and trained.get_linestyle() != untrained.get_linestyle()
    last = metrics["known_class"].iloc[-1], numbers[-1]
    shown = metrics.set_index(["known_class", "n_anomalies"]).loc[[last]]
    expected = [f"{method}: AUC {shown['auc'][shown['method'] == method].mean():.3f}" for method in METHODS]
    assert {text.get_text() for text in panels[-1].get_legend().get_texts()} == set(expected)


def test_curves_are_tables_for_dvc_plots():
    scores, metrics = results(("a", "b"))
    curves = figures.tabulate_roc_curves(scores, metrics)
    assert len(curves) == 2 * len(METHODS) * 201
    own = curves[(curves["known_class"] == "b") & (curves["method"] == TRAINED)]
    assert (own["recall_low"] <= own["recall"]).all() and (own["recall"] <= own["recall_high"]).all()
    expected = metrics["auc"][(metrics["known_class"] == "b") & (metrics["method"] == TRAINED)].mean()
    assert np.trapezoid(own["recall"], own["false_alarms"]) == pytest.approx(expected, abs=0.02)
    shown = figures.tabulate_curves(curves, history(3))
    assert shown["roc"].columns.tolist() == ["false_alarms", *METHODS], "one curve per method, mean over cells"
    of_method = curves[curves["method"] == TRAINED].groupby("false_alarms")["recall"].mean()
    assert shown["roc"][TRAINED].tolist() == pytest.approx(of_method.tolist())
    assert shown["losses"]["total"].tolist() == [7.0, 8.0, 9.0]
    none = figures.tabulate_curves(figures.tabulate_roc_curves(scores, metrics.assign(auc=np.nan)), history(0))
    assert none["roc"].empty and none["losses"].empty


def test_outliers_do_not_squeeze_a_histogram():
    scores, metrics = results()
    scores.loc[scores["method"].eq(TRAINED).idxmax(), "score_g"] = 1e6
    panel = visible(figure_of("score_histograms", scores, metrics))[1]
    assert panel.get_title() == "score_g"
    assert panel.get_xlim()[1] < 20, "standard normal values are still distinguished"


@pytest.mark.parametrize(
    ("gain", "n_seeds", "sentence"),
    [
        (6.0, 3, "What MPFM learned from the 10 known anomalies adds 0."),
        (-6.0, 3, "What MPFM learned from the 10 known anomalies costs 0."),
        (0.0, 3, "What MPFM learned from the 10 known anomalies adds nothing measurable here ("),
        (6.0, 1, "one seed cannot tell"),
        (0.0, 2, "two seeds cannot tell"),
    ],
)
def test_summary_says_what_known_anomalies_add(gain, n_seeds, sentence):
    strength = {TRAINED: 3 + gain / 2, UNTRAINED: 3 - gain / 2}
    scores = trial_scores(strength, numbers=(10,), n_seeds=n_seeds)
    scores = scores[scores["setting"] == "hard"]
    samples = pd.DataFrame({"sample_id": scores["sample"].unique()}).assign(item=lambda table: table["sample_id"])
    differences = paired_differences(scores, samples, baseline=UNTRAINED)
    text = text_of(measure_trials(scores, trial_costs(scores)), differences=differences)
    assert text.count(f"compared with '{UNTRAINED}'") == 1, "of the mean over classes alone"
    assert sentence in text


def test_a_score_that_counts_nothing_in_most_modes_of_all_runs_is_said():
    weights = pd.DataFrame({"score_g": [0.0, 0.5, 0.4, 0.3], "score_a": [0.4] * 4, "score_n": [0.0, 0.0, 1e-6, 0.2]})
    said = name_uncounted(weights, least=0.5)
    assert said == "score_n counts nothing in 3 of 4 modes: it does not tell the held-out known defects from normals."
    assert name_uncounted(weights).startswith("score_g counts nothing in 1 of 4 modes, score_n counts nothing in 3 of")
    scores, metrics = results(("dent",))
    page = write_report(scores, evaluated(metrics), described(history(0)), said)
    assert said in page and said in write_summary(evaluated(metrics), said)
    assert name_uncounted(weights[:0], least=0.5) == "" and "counts nothing" not in page_of(scores, metrics)


def test_report_is_as_wide_as_the_screen_and_readable_on_a_phone(window: Any, tmp_path: Path):
    file = tmp_path / "report.html"
    file.write_text(page_of(*results(("dent", "hole"), (10, 1))))
    window.goto(file.as_uri())
    for width, columns in ((1400, 2), (380, 1)):
        window.set_viewport_size({"width": width, "height": 900})
        assert window.evaluate("document.documentElement.scrollWidth") <= width, "nothing is beside the screen"
        text, panels, image = (window.locator(name).first.bounding_box() for name in ("p", ".panels", ".panels img"))
        assert panels["width"] == pytest.approx(text["width"], abs=2), "as wide as the text"
        assert image["width"] == pytest.approx(panels["width"] / columns, rel=0.05)


@pytest.mark.parametrize("n_epochs", [0, 1, 3])
def test_report_is_one_complete_page_with_the_numbers(n_epochs):
    scores, metrics = results(("dent", "<b>hole & dent</b>"))
    summary = summarise_setting(metrics)
    report = page_of(scores, metrics, n_epochs)
    assert report.startswith("<!doctype html>")
    page = Page(report)
    assert [page.count(tag) for tag in ("html", "head", "title", "body", "h1")] == [1] * 5
    assert page.count("table") == 2
    assert "category" not in page.text, "a dataset without categories has no column for them"
    for label in ["AUC", "AP", "M", "known class", "seeds", *METHODS, *PART_COLUMNS]:
        assert label in page.terms or f"{label}: " in page.text, f"{label} is not explained"
    assert not page.count("b"), "names are text, not markup"
    assert "<b>hole & dent</b>" in page.text
    for row in summary.to_dict("records"):
        assert f"{row['auc_mean']:.3f} ± {row['auc_std']:.3f}" in page.text
        assert f"{row['ap_mean']:.3f} ± {row['ap_std']:.3f}" in page.text
    for auc in metrics["auc"]:
        assert f"{auc:.4f}".rstrip("0") in page.text
    sources = page.all("img", "src")
    assert page.count("img") == len(sources) == 2 + 5 + 1 + (8 + 2 if n_epochs else 0)  # one image per panel
    assert not [tag for tag, attributes in page.tags if "href" in attributes]
    for source in sources:
        kind, content = re.fullmatch(r"data:image/(\w+);base64,(.*)", source).groups()
        image = Image.open(io.BytesIO(base64.b64decode(content)))
        assert image.format == kind.upper() and np.ptp(image.convert("L").getextrema()) > 0, "something is drawn"
    assert "http" not in report.split("<body>")[0]


def test_report_of_repeats_that_leave_no_auc():
    scores, metrics = results()
    undefined = dict.fromkeys(["auc_mean", "auc_std", "ap_mean", "ap_std"], np.nan)
    without = summarise_setting(metrics).assign(**undefined, excluded=[3.0, 4.0])
    page = Page(page_of(scores, metrics, 2, without_repeats=without))
    assert page.count("table") == 3
    assert page.text.count("undefined") == 4
    assert "without them (3.5 per run on average)" in page.text


def test_recall_has_its_interval_or_is_undefined():
    """Seen with 12 normals: a recall at 1 % of 1.000 ± 0.000."""
    scores = trial_scores({TRAINED: 2.0, UNTRAINED: 1.0}, n_normals=40, numbers=(10,))
    scores = scores[scores["setting"] == "hard"]
    metrics = measure_trials(scores)
    summary = summarise_setting(metrics, recall_intervals(scores, draws=50))
    row = summary[(summary["known_class"] == "mean") & (summary["method"] == TRAINED)].to_dict("records")[0]
    shown = f"{row['recall_5_mean']:.3f} [{row['recall_5_low']:.3f}, {row['recall_5_high']:.3f}]"
    for text in (text_of(metrics, summary=summary), Page(page_of(scores, metrics, summary=summary)).text):
        assert shown in text
        assert "Recall at 1 % false alarms is undefined: it needs 100 normal test images, there are 40." in text
        assert "Recall at 5 % false alarms is undefined" not in text
    assert text_of(metrics, summary=summary).count("undefined ") >= len(summary)


def test_tested_classes_have_a_table_of_their_own():
    scores = trial_scores({TRAINED: 1.0, UNTRAINED: 1.0}, classes=("cut", "dent", "hole"), numbers=(10,))
    names = scores["sample"].drop_duplicates()
    samples = pd.DataFrame({"sample_id": names, "defect_class": names.str.split("/").str[1].replace("good", "")})
    for setting, n_rows in (("general", 3), ("hard", 9)):
        own = scores[scores["setting"] == setting]
        metrics, tested = measure_trials(own), summarise_tested_classes(own, samples)
        page = page_of(own, metrics, tested_classes=tested)
        table = page.split("<h2>Tested classes</h2>")[1].split("</table>")[0]
        assert table.count("<tr") == 1 + n_rows and "<th>tested class</th>" in table
        assert ("<th>known class</th>" in table) == (setting == "hard")
        lines = text_of(metrics, tested_classes=tested).splitlines()
        first = next(i for i, line in enumerate(lines) if "tested class " in line and "AUC" in line)
        words = [line.split() for line in lines[first + 1 : first + 4]]
        assert [row[:2] for row in words] == (
            [["mean", name] for name in ("cut", "dent", "hole")]
            if setting == "hard"
            else [[name, "10"] for name in ("cut", "dent", "hole")]
        )
    assert "Tested classes" not in page_of(own, metrics)


def test_the_model_without_known_anomalies_has_m_0_and_one_row():
    _, metrics = results(numbers=(10, 1))
    metrics = metrics.drop(columns=["recall_1", "recall_5"])
    metrics.loc[metrics["method"] == UNTRAINED, ["auc", "ap"]] = 0.75
    rows = [line for line in text_of(metrics).splitlines() if UNTRAINED in line]
    assert len(rows) == 1 and rows[0].split()[-8:] == ["0", "0.750", "±", "0.000", "0.750", "±", "0.000", "2"]


def test_an_undefined_operating_point_is_shown_as_such():
    points = [("a", "", 1, 0.05, 0.0, np.nan, 0.0), ("b", "", 5, 0.05, 0.0, 0.5, 0.25)]
    mistake = {"run": "a", "known_class": "", "n_anomalies": 10, "kind": "false alarm", "defect_class": ""}
    mistake |= {
        "sample": "good/<b>.png",
        "score": 1.0,
        "likeness": 0.27,
        "decision": "good",
        "image": b"",
        "link": "%3Cb%3E.png",
    }
    scores, metrics = results()
    shown = {"mistakes": pd.DataFrame([mistake]), "operating_points": pd.DataFrame(points, columns=POINTS)}
    page = Page(write_report(scores, evaluated(metrics), described(history(0), **shown)))
    assert page.text.count("undefined") == 1 and "50.0%" in page.text and "25.0%" in page.text
    assert "M = 10: normals with the highest scores" in page.text
    assert "score 1.00, good, likeness 0.27" in page.text
    assert "good/<b>.png" in page.text and "%3Cb%3E.png" in page.all("a", "href")


@pytest.mark.parametrize(("normals", "anomalies", "half"), [(5, 5, "0.21"), (10, 10, "0.15"), (100, 10, "0.13")])
def test_an_auc_of_few_images_is_said_to_be_uncertain(normals, anomalies, half):
    _, metrics = results()
    tested = metrics.assign(n_test_normals=normals, n_test_anomalies=anomalies)
    text = text_of(tested)
    assert f"Only {normals} normal and {anomalies} anomalous images are tested" in text and f"± {half}, what" in text
    for enough in ((100, 25), (40, 0)):  # with none, AUC is undefined
        assert conclusions(evaluated(tested.assign(n_test_normals=enough[0], n_test_anomalies=enough[1]))) == []
