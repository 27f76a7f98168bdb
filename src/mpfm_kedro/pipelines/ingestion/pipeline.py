"""Ingestion: raw files, sample table, split of the normals."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.ingestion.nodes import check_images, list_samples, split_normals


def create_pipeline() -> Pipeline:
    """The stage that every setting shares."""
    listing = ["images", "params:category", "params:ingestion", "params:name"]
    return Pipeline(
        [
            node(list_samples, listing, "listed_samples", name="list_samples"),
            node(
                check_images, ["listed_samples", "images", "params:ingestion"], "checked_samples", name="check_images"
            ),
            node(split_normals, ["checked_samples", "params:ingestion"], "samples", name="split_normals"),
        ],
        tags="ingestion",
    )
