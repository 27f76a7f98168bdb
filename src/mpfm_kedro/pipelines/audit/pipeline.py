"""Audit: repeated images, leaks between train and test, the state of the files, contact sheets."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.audit.nodes import audit_samples, find_repeats
from mpfm_kedro.pipelines.audit.sheets import draw_contact_sheet, draw_duplicate_sheet


def create_pipeline(**_: object) -> Pipeline:
    """The stage that every setting shares."""
    return Pipeline(
        [
            node(find_repeats, "samples", "repeated_images", name="find_repeats"),
            node(audit_samples, ["samples", "repeated_images"], "audit", name="audit_samples"),
            node(draw_contact_sheet, ["samples", "images"], "contact_sheet", name="draw_contact_sheet"),
            node(draw_duplicate_sheet, ["repeated_images", "images"], "duplicate_sheet", name="draw_duplicate_sheet"),
        ],
        namespace="audit",
        prefix_datasets_with_namespace=False,
    )
