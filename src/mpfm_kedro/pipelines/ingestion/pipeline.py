"""Ingestion: raw files, sample table, split of the normals, repeated images."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.ingestion.nodes import check_images, drop_repeats, list_samples, split_normals


def create_pipeline(**_: object) -> Pipeline:
    """The stage that every setting shares."""
    return Pipeline(
        [
            node(
                list_samples,
                ["images", "params:category", "params:ingestion", "params:name"],
                "listed_samples",
                name="list_samples",
            ),
            node(
                check_images,
                ["listed_samples", "images", "params:ingestion"],
                "checked_samples",
                name="check_images",
            ),
            node(
                split_normals,
                ["checked_samples", "params:ingestion.group_split"],
                "divided_samples",
                name="split_normals",
            ),
            node(
                drop_repeats,
                ["divided_samples", "params:ingestion.drop_duplicates"],
                "samples",
                name="drop_repeats",
            ),
        ],
        namespace="ingestion",
        prefix_datasets_with_namespace=False,
    )
