"""Text, figures and the page: complete, with the numbers, also where there is little to show."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from mpfm_kedro.experiments.measures import summarise_setting
from mpfm_kedro.reports import figures
from mpfm_kedro.reports.setting import write_report, write_summary

METHODS = ["MPFM", "MPFM, 0 iterations"]
PARTS = ["score_g", "score_a", "score_r", "score_n"]


def results(classes: list[str], numbers: tuple[int, ...] = (10,)) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores and metrics of two seeds for each class and number of known anomalies."""
    rng = np.random.default_rng(0)
    scores, metrics = [], []
    for known in classes:
        for number in numbers:
            for seed in range(2):
                run = f"{known}-M{number}-seed{seed}"
                for method in METHODS:
                    table = pd.DataFrame(rng.normal(size=(30, 5)), columns=["score", *PARTS])
                    scores.append(table.assign(run=run, method=method, label=[0] * 20 + [1] * 10))
                    row = {"run": run, "dataset": "synthetic", "category": "", "setting": "hard", "known_class": known}
                    row |= {"n_anomalies": number, "seed": seed, "method": method, "auc": rng.uniform(0.5, 1)}
                    metrics.append(row | {"ap": rng.uniform(0.3, 1), "seconds": 1.5})
    return pd.concat(scores, ignore_index=True), pd.DataFrame(metrics)


def history(n_epochs: int) -> pd.DataFrame:
    terms = ["flow_normal", "flow_anomaly", "mim", "score_g", "score_a", "total"]
    terms += ["used_prototypes", "assignment_entropy", "information_share"]
    rows = [
        {"run": run, "epoch": epoch + 1} | {term: float(i + epoch) for i, term in enumerate(terms)}
        for run in ("a", "b")
        for epoch in range(n_epochs)
    ]
    return pd.DataFrame(rows, columns=None if rows else ["run", "epoch"])


def drawn(figure: Figure) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=40)
    image = Image.open(buffer).convert("L")
    darkest, lightest = image.getextrema()
    assert darkest < lightest, "nothing is drawn"
    return image


def test_pixel_measures_are_shown_where_there_are_masks():
    _, metrics = results(["dent"])
    assert "AUPRO" not in write_summary(summarise_setting(metrics))
    has_maps = metrics["method"] == "MPFM"
    for name, value in {"pixel_auroc": 0.91, "aupro": 0.82, "pixel_f1": 0.43}.items():
        metrics[name] = np.where(has_maps, value, np.nan)
    header, first, second, *_ = write_summary(summarise_setting(metrics)).splitlines()
    assert re.search(r"AP +pixel AUC +AUPRO +pixel F1 +seeds", header)
    assert "0.910 ± 0.000 0.820 ± 0.000 0.430 ± 0.000" in first
    assert "nan" not in second


def visible(figure: Figure) -> list:
    return [axis for axis in figure.axes if axis.get_visible()]


@pytest.mark.parametrize(("classes", "numbers"), [([""], (10,)), (["a", "b", "c"], (10, 1))])
def test_roc_curves_have_one_panel_per_cell(classes, numbers):
    scores, metrics = results(classes, numbers)
    figure = figures.draw_roc_curves(scores, metrics)
    panels = visible(figure)
    assert len(panels) == len(classes) * len(numbers)
    assert all(len(panel.lines) == 4 for panel in panels), "two seeds, trained and not"
    shown = metrics[(metrics["method"] == "MPFM") & (metrics["known_class"] == classes[-1])]
    expected = shown["auc"][shown["n_anomalies"] == numbers[-1]].mean()
    assert f"AUC {expected:.3f}" in panels[-1].get_title()
    drawn(figure)


def test_histograms_show_the_score_and_its_parts():
    figure = figures.draw_score_histograms(results(["a"])[0])
    assert [axis.get_title() for axis in visible(figure)] == ["score", *PARTS]
    drawn(figure)


def test_histogram_of_a_part_that_never_varies():
    scores = results(["a"])[0].assign(score_a=0.25)
    drawn(figures.draw_score_histograms(scores))


def test_loss_and_prototype_curves():
    figure = figures.draw_loss_curves(history(5))
    assert len(visible(figure)) == 6
    assert visible(figure)[-1].lines[0].get_ydata().tolist() == [5.0, 6.0, 7.0, 8.0, 9.0]
    drawn(figure)
    usage = figures.draw_prototype_usage(history(5))
    assert [len(axis.lines) for axis in visible(usage)] == [2, 2, 2]
    drawn(usage)


@pytest.mark.parametrize("draw", [figures.draw_loss_curves, figures.draw_prototype_usage])
@pytest.mark.parametrize("n_epochs", [0, 1])
def test_little_or_no_training_is_drawn_too(draw, n_epochs):
    drawn(draw(history(n_epochs)))


def test_summary_text_has_every_number():
    summary = summarise_setting(results(["dent", "hole"])[1])
    text = write_summary(summary)
    for row in summary.to_dict("records"):
        assert f"{row['auc_mean']:.3f} ± {row['auc_std']:.3f}" in text
        assert f"{row['ap_mean']:.3f} ± {row['ap_std']:.3f}" in text
    assert "split of the normals is fixed" in text


class Page(HTMLParser):
    """Collects what a page is made of, and that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.sources: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


@pytest.mark.parametrize("n_epochs", [0, 3])
def test_report_is_one_complete_page_with_the_numbers(n_epochs):
    scores, metrics = results(["dent", "<b>hole & dent</b>"])
    summary = summarise_setting(metrics)
    report = write_report(summary, metrics, scores, history(n_epochs))
    assert report.startswith("<!doctype html>")
    page = Page(report)
    assert [page.count[tag] for tag in ("html", "head", "title", "body", "h1")] == [1] * 5
    assert page.count["table"] == 2
    assert "b" not in page.count, "names are text, not markup"
    assert "<b>hole & dent</b>" in page.text
    for row in summary.to_dict("records"):
        assert f"{row['auc_mean']:.3f} ± {row['auc_std']:.3f}" in page.text
        assert f"{row['ap_mean']:.3f} ± {row['ap_std']:.3f}" in page.text
    for auc in metrics["auc"]:
        assert f"{auc:.4f}".rstrip("0") in page.text
    assert len(page.sources) == (4 if n_epochs else 3)  # prototypes of images are those of a trained flow
    for source in page.sources:
        kind, content = re.fullmatch(r"data:image/(\w+);base64,(.*)", source).groups()
        assert Image.open(io.BytesIO(base64.b64decode(content))).format == kind.upper()
    assert "http" not in report.split("<body>")[0]


def test_report_of_repeats_that_leave_no_auc():
    """An undefined AUC comes back from its file as an empty text, which is no reason to lose the page."""
    scores, metrics = results(["dent"])
    summary = summarise_setting(metrics)
    without = summary.assign(auc_mean="", auc_std="", ap_mean="", ap_std="", excluded=["3.0", "4.0"])
    page = Page(write_report(summary, metrics, scores, history(2), without))
    assert page.count["table"] == 3
    assert page.text.count("undefined") == 4
    assert "without them (3.5 per run on average)" in page.text
