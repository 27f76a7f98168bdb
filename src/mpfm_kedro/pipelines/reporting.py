"""What a report shows besides numbers, and the report."""

from collections.abc import Iterator
from datetime import date
from itertools import islice
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.compute import torch_device
from mpfm_kedro.evaluation.columns import ours
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.near import near_copies
from mpfm_kedro.parameters import ComparisonParameters, InspectionParameters, RepairParameters, TrainingParameters
from mpfm_kedro.protocol.methods import configured_methods, describe_methods, from_json
from mpfm_kedro.protocol.trials import Trial, Trials
from mpfm_kedro.provenance import code_revision
from mpfm_kedro.reports.figures import draw_side_by_side, list_panels, tabulate_curves, tabulate_roc_curves, to_strip
from mpfm_kedro.reports.model import name_uncounted
from mpfm_kedro.reports.setting import write_report, write_summary
from mpfm_kedro.sources.repeats import unreadable

MOST_CELLS = 8
TYPICAL = 6  # images of each group
MOST_PAIRS = 12


def describe_models(
    models: Trials,
    scores: pd.DataFrame,
    features: Features,
    samples: pd.DataFrame,
    images: ImageLoader,
    inspection: InspectionParameters,
) -> dict[str, pd.DataFrame]:
    """What the models of a setting tell: training curves, groups of normals, misses and false alarms as images.

    Mistakes are of the first seed of each cell, with precision and recall at a threshold.
    """
    from mpfm_kedro.inspection.mistakes import COLUMNS, POINTS, find_mistakes  # with torch, which is slow to import
    from mpfm_kedro.inspection.production import ProductionFit

    cells: dict[tuple, Trial] = {}
    for trial in trials_of_mpfm(models):
        cells.setdefault(tuple(trial.run[name] for name in ("category", "known_class", "n_anomalies")), trial)
    mistakes, points = [pd.DataFrame(columns=COLUMNS)], []
    for trial in list(cells.values())[:MOST_CELLS]:
        scored = scores[(scores["run"] == trial.run["run"]) & (scores["method"] == trial.method.name)]
        fit = ProductionFit(trial.run, models.artefacts(trial), features, samples, images, [])
        rate, confidence = inspection.false_alarm_rate, inspection.confidence
        table, point = find_mistakes(fit, scored, rate, confidence, torch_device(inspection.device))
        mistakes.append(table)
        points.append(point)
    shown = pd.concat(mistakes[1:] or mistakes, ignore_index=True)
    files = samples.set_index("sample_id")
    typical = typical_normals(models, TYPICAL)
    groups = [{"size": size, "image": to_strip(images.thumbnails(files.loc[members]))} for size, members in typical]
    return {
        "modes": tabulate_modes(models),
        "history": tabulate_history(models),
        "sampled_features": sample_features(models, features),
        "groups": pd.DataFrame(groups, columns=["size", "image"]),
        "mistakes": shown.assign(link=[(images.folder / path).as_uri() for path in files["path"].loc[shown["sample"]]]),
        "operating_points": pd.DataFrame(points, columns=POINTS),
        "both_labels": show_both_labels(samples, images),
    }


def trials_of_mpfm(models: Trials) -> list[Trial]:
    """The trials of MPFM; of the one that knows no anomaly, where there was none to learn from."""
    name = ours(models.table["method"])
    return [trial for trial in models if trial.method.name == name]


def tabulate_modes(models: Trials) -> pd.DataFrame:
    """How the number of modes was chosen: one row per run and number tried."""
    return pd.DataFrame(
        [{"run": run} | row for run, fit in _details(models, "prototypes") for row in fit["modes_tried"]]
    )


def tabulate_history(models: Trials) -> pd.DataFrame:
    """The seven terms of the objective along training: one row per run and epoch."""
    rows = [{"run": run} | row for run, fit in _details(models, "training") for row in fit["history"]]
    return pd.DataFrame(rows, columns=None if rows else ["run", "epoch"])


def tabulate_weights(models: Trials) -> pd.DataFrame:
    """What each score counts in each mode of each run that knows anomalies."""
    from mpfm_kedro.inspection.production import describe_weights  # with torch, which is slow to import

    known = [trial for trial in trials_of_mpfm(models) if trial.run["known_anomalies"]]
    stored = (models.memory.load(trial.fits["calibration"]) for trial in known)
    return pd.DataFrame([row for fit in stored for row in describe_weights(fit)])


def typical_normals(models: Trials, most: int) -> list[tuple[int, list[str]]]:
    """The groups of the first run's normals, the largest first: size and most typical samples of each."""
    first = trials_of_mpfm(models)[0]
    tensors = models.memory.load(first.fits["prototypes"]).tensors
    group, offset = (tensors[name].numpy() for name in ("group", "held_out.offset"))
    energy = (offset**2).mean(1)
    table = pd.DataFrame({"group": group, "energy": energy, "sample": first.run["train_normals"]})
    groups = [(len(part), part.nsmallest(most, "energy")["sample"].tolist()) for _, part in table.groupby("group")]
    return sorted(groups, key=lambda group: -group[0])


def sample_features(models: Trials, features: Features) -> pd.DataFrame:
    """Features of normals drawn by the first run's model beside real ones, along the real ones' two main directions."""
    from mpfm_kedro.detectors.mpfm.reverse import compare_with_samples  # with torch, which is slow to import

    first = trials_of_mpfm(models)[0]
    rows = features.rows(first.run["train_normals"])
    return compare_with_samples(models.artefacts(first), features.store.pooled[rows], first.run["seed"])


def _details(models: Trials, stage: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run and details of one stage of MPFM."""
    for trial in trials_of_mpfm(models):
        if stage in trial.fits:
            yield trial.run["run"], models.memory.details(trial.fits[stage])


def show_both_labels(samples: pd.DataFrame, images: ImageLoader) -> pd.DataFrame:
    """Near copies of which one is normal and one is anomalous, side by side."""
    pairs = samples.assign(set=near_copies(samples))[~unreadable(samples)].drop_duplicates(["set", "label"])
    rows: list[dict[str, Any]] = []
    for _, pair in islice(pairs[pairs["set"].duplicated(keep=False)].groupby("set", sort=False), MOST_PAIRS):
        rows.append({"samples": " = ".join(pair["sample_id"]), "image": to_strip(images.thumbnails(pair))})
    return pd.DataFrame(rows, columns=["samples", "image"])


def draw_figures(
    scores: pd.DataFrame, evaluation: dict[str, pd.DataFrame], description: dict[str, pd.DataFrame]
) -> tuple[dict[str, Figure], dict[str, pd.DataFrame]]:
    """The figures of a setting by name, and its ROC curves and losses as tables for `dvc plots`."""
    roc, history = tabulate_roc_curves(scores, evaluation["run_metrics"]), description["history"]
    panels = list_panels(scores, roc, history, description["sampled_features"])
    return {name: draw_side_by_side(panel) for name, panel in panels.items()}, tabulate_curves(roc, history)


def write_setting(
    scores: pd.DataFrame, evaluation: dict[str, pd.DataFrame], description: dict[str, pd.DataFrame], models: Trials
) -> tuple[str, str]:
    """The page of a setting, and its summary for the terminal."""
    uncounted = name_uncounted(tabulate_weights(models), least=0.5)
    return write_report(scores, evaluation, description, uncounted), write_summary(evaluation, uncounted)


def list_methods(
    runs: pd.DataFrame, training: TrainingParameters, repairs: RepairParameters, comparison: ComparisonParameters
) -> pd.DataFrame:
    """Kind, budget and note of the methods of a study, in the order of the tables."""
    methods = [method for content in runs["methods"].unique() for method in from_json(content)]
    configured = {method.name: method for method in configured_methods(methods, repairs)}
    return pd.DataFrame(describe_methods(configured.values(), training, comparison.steps))


def describe_origin(study: str, parameters: dict[str, Any], runs: pd.DataFrame, features: Features) -> str:
    """How a table was made: pipeline, date, revision and the parameters that users set most."""
    names = ["dataset", "category", "known_class", "first_seed", "n_seeds", "backbone"]
    if parameters["name"] != parameters["dataset"]:
        names.insert(1, "name")
    shown = {name: parameters[name] for name in names}
    shown |= {name: " + ".join(value) for name, value in shown.items() if isinstance(value, list)}
    values = ", ".join(f"{name}={value}" for name, value in shown.items())
    numbers = ", ".join(str(number) for number in sorted(runs["n_anomalies"].unique(), reverse=True))
    return (
        f"Made by `kedro run --pipelines={study}` on {date.today().isoformat()}, revision {code_revision()}, "
        f"with {values}, image_size={features.store.spec.image_size}, M = {numbers}; the backbone is frozen."
    )
