"""The experiments: from raw images to a report, by stages that all of them share."""

from functools import partial, update_wrapper
from typing import Any

from kedro.pipeline import Pipeline, node
from kedro.pipeline.node import Node

from mpfm_kedro.evaluation.false_alarms import false_alarms_by_mode, separation
from mpfm_kedro.evaluation.intervals import paired_differences
from mpfm_kedro.evaluation.published import load_published, load_published_ablation
from mpfm_kedro.evaluation.ranks import rank_methods
from mpfm_kedro.pipelines import audit, features, ingestion, reporting, runs
from mpfm_kedro.pipelines.evaluation import evaluate, evaluate_study
from mpfm_kedro.pipelines.mpfm import calibrate_scores, initialise_prototypes, train_mpfm
from mpfm_kedro.pipelines.scoring import score_compared, score_images
from mpfm_kedro.reports.comparison import comparison_table, write_comparison
from mpfm_kedro.reports.study import describe_study, gather_cells, printed_cells, write_study
from mpfm_kedro.reports.study_figures import draw_ablation, draw_comparison, draw_ranks, draw_sensitivity
from mpfm_kedro.reports.variants import ablation_table, sensitivity_table, write_ablation, write_sensitivity

# datasets without the name of a study
SHARED = {"samples", "images", "features", "backbone_weights", "study_plan", "compared"}
SHARED |= {"production_samples", "production_features", "production_model", "collection", "setting_summaries"}
SHARED |= {"prediction_log", "batch_folder", "export_folder", "replaced_model", "earlier_predictions"}
SHARED |= {"restore_commands", "collection_before"}
PROTOCOL = ["samples", "params:protocol"]
SCORED = ["models", "features", "samples", "images", "params:compute"]


def study_node(study: str, function: Any, inputs: Any, outputs: Any, name: str) -> Node:
    """A node whose datasets have the name of the study before theirs, but for shared ones and parameters."""

    def named(names: Any) -> Any:
        if isinstance(names, list):
            return [named(one) for one in names]
        return names if names in SHARED or names.startswith("param") else f"{study}_{names}"

    return node(function, named(inputs), named(outputs), name=name, tags=name)


def create_setting(setting: str) -> Pipeline:
    """The general or the hard setting: MPFM, at step 0, and before it has learned from any anomaly."""
    new = partial(study_node, setting)
    draw = {"general": runs.draw_general_runs, "hard": runs.draw_hard_runs}[setting]
    scored = ["scores", "pixel_measures"]
    described = ["models", "scores", "features", "samples", "images", "params:inspection"]
    shown = ["scores", "evaluation", "description"]
    nodes = [
        new(draw, PROTOCOL, "runs", name="draw_runs"),
        *mpfm_stages(setting),
        new(score_images, SCORED, [*scored, "costs"], name="score_images"),
        new(evaluate, [*scored, "runs", "samples"], ["evaluation", "metrics"], name="evaluate"),
        new(reporting.describe_models, described, "description", name="describe_models"),
        new(reporting.draw_figures, shown, ["figures", "curves"], name="draw_figures"),
        new(reporting.write_setting, [*shown, "models"], ["report", "summary_text"], name="write_report"),
    ]
    return _compose(nodes)


def mpfm_stages(study: str, features: str = "features", prefix: str = "") -> list[Node]:
    """The three stages in which MPFM is fitted; a prefix of their names where a pipeline has them twice."""
    new = partial(study_node, study)
    prototypes = ["runs", features, "params:prototypes", "params:repairs", "params:compute"]
    learned = [features, "params:training", "params:repairs", "params:compute"]
    return [
        new(initialise_prototypes, prototypes, "prototypes", name=f"{prefix}initialise_prototypes"),
        new(train_mpfm, ["prototypes", *learned], "trained", name=f"{prefix}train_mpfm"),
        new(calibrate_scores, ["trained", *learned], "models", name=f"{prefix}calibrate_scores"),
    ]


def create_comparison() -> Pipeline:
    """MPFM beside baselines and references, both settings."""
    new = partial(study_node, "comparison")
    described = ["runs", "params:training", "params:repairs", "params:comparison"]
    draw = new(runs.draw_compared_runs, [*PROTOCOL, "params:comparison"], "runs", name="draw_runs")
    written = ["table", "origin", "params:first_seed"]
    report = [
        new(reporting.list_methods, described, "methods", name="list_methods"),
        new(paired_differences, ["scores", "samples"], "differences", name="compare_with_mpfm"),
        new(load_published, "params:dataset", "published", name="load_published"),
        new(comparison_table, ["summary", "differences", "methods", "published"], "table", name="comparison_table"),
        new(write_comparison, written, ["summary_text", "report"], name="write_comparison"),
        new(draw_comparison, "table", "plot", name="draw_comparison"),
    ]
    return _create_study("comparison", draw, report)


def create_ablation() -> Pipeline:
    """MPFM without each of its parts, and with each repair in its printed form."""
    new = partial(study_node, "ablation")
    draw = new(runs.draw_variant_runs, [*PROTOCOL, "params:ablation"], "runs", name="draw_runs")
    written = ["table", "separation", "false_alarms", "origin"]
    report = [
        new(paired_differences, ["scores", "samples"], "differences", name="compare_with_mpfm"),
        new(separation, "scores", "separation", name="measure_separation"),
        new(false_alarms_by_mode, "scores", "false_alarms", name="count_false_alarms"),
        new(load_published_ablation, "params:dataset", "published", name="load_published_ablation"),
        new(ablation_table, ["summary", "differences", "published"], "table", name="ablation_table"),
        new(write_ablation, written, ["summary_text", "report"], name="write_ablation"),
        new(draw_ablation, "table", "plot", name="draw_ablation"),
    ]
    return _create_study("ablation", draw, report)


def create_sensitivity() -> Pipeline:
    """Other numbers of prototypes K, other weights λ of mutual information."""
    new = partial(study_node, "sensitivity")
    chosen = [*PROTOCOL, "params:ablation", "params:sensitivity"]
    draw = new(runs.draw_variant_runs, chosen, "runs", name="draw_runs")
    report = [
        new(load_published_ablation, "params:dataset", "published", name="load_published_ablation"),
        new(sensitivity_table, ["summary", "published"], "table", name="sensitivity_table"),
        new(write_sensitivity, ["table", "origin"], ["summary_text", "report"], name="write_sensitivity"),
        new(draw_sensitivity, "table", "plot", name="draw_sensitivity"),
    ]
    return _create_study("sensitivity", draw, report)


def create_study() -> Pipeline:
    """One report of several comparisons; `kedro study` makes these first."""
    new = partial(study_node, "study")
    written = ["printed", "ranked", "study_plan", "origin"]
    nodes = [
        new(gather_cells, ["study_plan", "compared"], "summary", name="gather_cells"),
        new(printed_cells, "summary", "printed", name="printed_cells"),
        new(rank_methods, "printed", "ranked", name="rank_methods"),
        new(describe_study, ["study_plan", "params:study"], "origin", name="describe_study"),
        new(write_study, written, ["summary_text", "report"], name="write_study"),
        new(draw_ranks, "ranked", "plot", name="draw_ranks"),
    ]
    return Pipeline(nodes)


def _create_study(name: str, draw: Node, report: list[Node]) -> Pipeline:
    """A study of both settings, with baselines where its runs name some."""
    new = partial(study_node, name)
    origin = update_wrapper(partial(reporting.describe_origin, name), reporting.describe_origin)
    scored = ["scores", "pixel_measures", "costs"]
    compared = [*SCORED[:-1], "params:comparison", "params:compute"]
    score = (
        new(score_compared, ["runs", *compared], scored, name="score_images")
        if name == "comparison"
        else new(score_images, SCORED, scored, name="score_images")
    )
    nodes = [
        draw,
        *mpfm_stages(name),
        score,
        new(evaluate_study, [*scored, "samples"], ["run_metrics", "summary"], name="evaluate"),
        new(origin, ["parameters", "runs", "features"], "origin", name="describe_origin"),
        *report,
    ]
    return _compose(nodes, baselines=name == "comparison")


def _compose(nodes: list[Node], baselines: bool = False) -> Pipeline:
    """After the stages before the runs, which all studies share."""
    shared = ingestion.create_pipeline() + audit.create_pipeline() + features.create_pipeline(baselines)
    return shared + Pipeline(nodes)
