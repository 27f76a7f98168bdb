"""Sensitivity: other numbers of prototypes K, other weights λ of MIMR."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.experiments.published import load_published_ablation
from mpfm_kedro.experiments.specifications import sensitivity_specifications
from mpfm_kedro.pipelines.studies import BACKBONE, MPFM, create_study, plan_study
from mpfm_kedro.reports.sensitivity import sensitivity_table, write_sensitivity, write_sensitivity_page
from mpfm_kedro.reports.study_figures import draw_sensitivity


def create_pipeline(**_: object) -> Pipeline:
    """All values, both settings."""
    report = [
        node(load_published_ablation, "params:dataset", "published", name="load_published_ablation"),
        node(sensitivity_table, ["summary", "published"], "table", name="sensitivity_table"),
        node(write_sensitivity, ["table", "origin"], "summary_text", name="write_sensitivity"),
        node(write_sensitivity_page, ["table", "origin"], "report", name="write_sensitivity_page"),
        node(draw_sensitivity, "table", "plot", name="draw_sensitivity"),
    ]
    specifications = node(
        sensitivity_specifications,
        [*MPFM, "params:sensitivity", BACKBONE],
        "specifications",
        name="list_specifications",
    )
    return create_study("sensitivity", plan_study(specifications), report)
