"""Ablation: MPFM without each of its parts, and with each repair in its printed form."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.experiments.false_alarms import false_alarms_by_mode, separation
from mpfm_kedro.experiments.intervals import paired_differences
from mpfm_kedro.experiments.published import load_published_ablation
from mpfm_kedro.experiments.specifications import ablated_specifications
from mpfm_kedro.pipelines.studies import BACKBONE, MPFM, create_study, plan_study
from mpfm_kedro.reports.ablation import ablation_table, write_ablation, write_ablation_page
from mpfm_kedro.reports.study_figures import draw_ablation


def create_pipeline(**_: object) -> Pipeline:
    """All variants, both settings."""
    written = ["table", "separation", "false_alarms", "origin"]
    report = [
        node(paired_differences, ["scores", "samples"], "differences", name="compare_with_mpfm"),
        node(separation, "scores", "separation", name="measure_separation"),
        node(false_alarms_by_mode, "scores", "false_alarms", name="count_false_alarms"),
        node(load_published_ablation, "params:dataset", "published", name="load_published_ablation"),
        node(ablation_table, ["summary", "differences", "published"], "table", name="ablation_table"),
        node(write_ablation, written, "summary_text", name="write_ablation"),
        node(write_ablation_page, written, "report", name="write_ablation_page"),
        node(draw_ablation, "table", "plot", name="draw_ablation"),
    ]
    chosen = [*MPFM, "params:ablation", BACKBONE]
    specifications = node(ablated_specifications, chosen, "specifications", name="list_specifications")
    return create_study("ablation", plan_study(specifications), report)
