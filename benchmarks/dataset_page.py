"""A page for people about one dataset: what MPFM finds and misses. Made from a comparison that was run.

python benchmarks/dataset_page.py brainmri       # writes docs/results/brainmri.md and its pictures
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score

from mpfm_kedro.configuration import project_root
from mpfm_kedro.evaluation.columns import PART_COLUMNS, PIXEL_MEASURES, TRAINED, UNTRAINED
from mpfm_kedro.evaluation.measures import summarise_tested_classes
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.reports.figures import draw_side_by_side, list_panels, tabulate_roc_curves, to_strip
from mpfm_kedro.sources import SOURCES
from opened_project import open_project, parser

WORST = 10
RATE = 0.05
RESULTS = ["scores", "run_metrics", "summary"]


def main() -> None:
    """Read the results of the pipeline comparison, write the page and its pictures."""
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.add_argument("--group", default="", help="regular expression on the path; else modes of MPFM")
    given = arguments.parse_args()
    names = ["samples", "images", *(f"comparison_{name}" for name in RESULTS)]
    parameters, _, (samples, images, scores, metrics, summary) = open_project(given, *names)
    folder, name = project_root() / "docs/results", parameters.name
    scores, metrics, summary = (
        table[table["method"].isin([TRAINED, UNTRAINED])] for table in (scores, metrics, summary)
    )
    source = SOURCES[parameters.dataset]
    counts = samples.groupby(["split", "label"]).size()
    parts = [
        f"# {source.title}",
        f"{counts['train', 0]} normal images to learn from, {counts['test', 0]} to test, {counts['anomaly', 1]} "
        f"anomalies ({classes(samples)}). Licence: {source.licence}. Seeds 0 to {given.seeds - 1}; all methods: "
        f"[comparison]({name}_comparison.md).",
    ]
    for setting, own in scores.groupby("setting"):
        of_setting = metrics[metrics["setting"] == setting]
        picture = folder / f"{name}_{setting}_roc.png"
        draw_roc(own, of_setting).savefig(picture, dpi=80)
        parts += [
            f"## {str(setting).capitalize()} setting",
            f"![ROC curves: mean over seeds, and their range]({picture.name})",
            "Of each tested class: AUC, and recall at 1 % and 5 % false alarms, mean over seeds.",
            as_markdown(found(own, samples)),
            "AUC of each score alone and of their sum, mean over known classes and seeds (S_n reversed).",
            as_markdown(by_score(own)),
            f"False alarms by group of the test normals ({given.group or 'mode of MPFM'}), at a threshold that at most "
            "5 % of all of them exceed, M = 10:",
            as_markdown(by_group(own, samples, given.group)),
        ]
    worst = worst_misses(scores[scores["setting"] == "general"], samples)
    (folder / f"{name}_misses.jpg").write_bytes(strip(worst, images))
    parts += [
        "## Worst misses",
        "Anomalies of the general setting (M = 10) with the most test normals above them, mean over the seeds that "
        f"test them.\n\n![The {len(worst)} worst misses]({name}_misses.jpg)",
        as_markdown(worst.reset_index(drop=True)[["image", "class", "normals above"]]),
        *pixels(summary),
    ]
    (folder / f"{name}.md").write_text("\n\n".join(parts) + "\n")


def classes(samples: pd.DataFrame) -> str:
    """How many anomalies each class has."""
    counts = samples.loc[samples["label"] == 1, "defect_class"].value_counts()
    return ", ".join(f"{name} {number}" for name, number in counts.items())


def draw_roc(scores: pd.DataFrame, metrics: pd.DataFrame) -> Figure:
    """ROC curves of all cells."""
    roc = tabulate_roc_curves(scores, metrics)
    nothing = pd.DataFrame(columns=["epoch", "run", "kind", "first", "second"])
    return draw_side_by_side(list_panels(scores, roc, nothing, nothing)["roc_curves"])


def found(scores: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """AUC and recalls of each tested class, a row for each known class and number of known anomalies."""
    own = summarise_tested_classes(scores[scores["method"] == TRAINED], samples)
    own = own[own["known_class"] != "mean"]
    measured = own[["auc_mean", "recall_1_mean", "recall_5_mean"]].to_numpy()
    recalls = [["undefined" if np.isnan(recall) else f"{recall:.2f}" for recall in row[1:]] for row in measured]
    cells = [" · ".join([f"{row[0]:.3f}", *texts]) for row, texts in zip(measured, recalls, strict=True)]
    wide = own.assign(cell=cells).pivot_table("cell", ["known_class", "n_anomalies"], "tested_class", aggfunc="first")
    names = {"known_class": "known class", "n_anomalies": "M"}
    shown = wide.reset_index().rename(columns=names).sort_values(["known class", "M"], ascending=[True, False])
    return shown.fillna("").replace({"known class": {"": "any"}})


def by_score(scores: pd.DataFrame) -> pd.DataFrame:
    """AUC of the four scores and of their sum for each number of known anomalies: no score alone should be better."""
    own = scores[scores["method"] == TRAINED].assign(score_n=lambda table: -table["score_n"])
    names = {**dict.fromkeys(PART_COLUMNS, ""), "score": "sum"}
    aucs = [
        {"M": number} | {names[name] or f"S_{name[-1]}": roc_auc_score(run["label"], run[name]) for name in names}
        for (number, _), run in own.groupby(["n_anomalies", "run"])
    ]
    mean = pd.DataFrame(aucs).groupby("M").mean().sort_index(ascending=False)
    return mean.map("{:.3f}".format).reset_index()


def by_group(scores: pd.DataFrame, samples: pd.DataFrame, pattern: str) -> pd.DataFrame:
    """Share of false alarms in each group of the test normals, mean over runs with M = 10."""
    normals = scores[(scores["method"] == TRAINED) & (scores["n_anomalies"] == 10) & (scores["label"] == 0)]
    thresholds = normals.groupby("run")["score"].transform("quantile", 1 - RATE, interpolation="higher")
    paths = normals["sample"].map(samples.set_index("sample_id")["path"])
    group = paths.str.extract(pattern, expand=False) if pattern else normals["mode"]
    alarms = (normals["score"] > thresholds).groupby(group)
    rows = {"normals": alarms.size() // normals["run"].nunique(), "false alarms": alarms.mean().map("{:.1%}".format)}
    return pd.DataFrame(rows).rename_axis("group").reset_index()


def worst_misses(scores: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """The anomalies above which most normals are, mean over the runs in which they are tested."""
    own = scores[(scores["method"] == TRAINED) & (scores["n_anomalies"] == 10)]
    tables = []
    for _, run in own.groupby("run"):
        normals, anomalies = (run[run["label"] == label] for label in (0, 1))
        above = [(normals["score"] > score).mean() for score in anomalies["score"]]
        tables.append(pd.DataFrame({"sample_id": anomalies["sample"], "above": above}))
    mean = pd.concat(tables).groupby("sample_id")["above"].mean().nlargest(WORST)
    rows = samples.set_index("sample_id").loc[mean.index]
    shown = {"image": rows["path"], "class": rows["defect_class"]}
    return rows.assign(**shown, **{"normals above": [f"{100 * share:.0f} %" for share in mean]})


def strip(worst: pd.DataFrame, images: ImageLoader) -> bytes:
    """The worst misses side by side."""
    return to_strip(images.thumbnails(worst))


def pixels(summary: pd.DataFrame) -> list[str]:
    """How well heat maps show the defects, where there are masks."""
    names = [f"{name}_mean" for name in PIXEL_MEASURES if f"{name}_mean" in summary]
    own = summary[summary["method"] == TRAINED].dropna(subset=names) if names else summary[:0]
    if not len(own):
        return []
    return ["## Heat maps", as_markdown(own[["setting", "known_class", "n_anomalies", *names]].round(3))]


def as_markdown(table: pd.DataFrame) -> str:
    """A table."""
    lines = ["| " + " | ".join(map(str, table.columns)) + " |", "|" + "---|" * len(table.columns)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in table.to_numpy()])


if __name__ == "__main__":
    main()
