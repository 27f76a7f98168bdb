"""Audit: repeated images, leaks between train and test, the state of the files, contact sheets."""

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.audit.nodes import audit_samples


def create_pipeline() -> Pipeline:
    """The stage that every setting shares."""
    written = ["repeated_images", "audit", "contact_sheet", "duplicate_sheet"]
    return Pipeline([node(audit_samples, ["samples", "images"], written, name="audit_samples", tags="audit")])
