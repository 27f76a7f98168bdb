"""Export: a production model as one ONNX file, compared with torch before it is kept."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.export.nodes import export_network

SHARED = {"production_model", "production_samples", "images", "export_folder"}


def create_pipeline(**_: object) -> Pipeline:
    """From a model folder to a file for other machines."""
    read = ["params:images", "production_model", "production_samples", "images", "export_folder"]
    return Pipeline(
        [node(export_network, read, "summary_text", name="export_network")],
        inputs=SHARED,
        parameters={"params:images"},
        namespace="export",
    )
