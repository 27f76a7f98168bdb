"""Export: a production model as one ONNX file, compared with torch before it is kept."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.export.nodes import export_network


def create_pipeline(**_: object) -> Pipeline:
    """From a model folder to a file for other machines."""
    return Pipeline(
        [
            node(
                export_network,
                ["params:images", "production.model", "production.all_samples", "images", "production.export"],
                "export.summary_text",
                name="export_network",
            )
        ]
    )
