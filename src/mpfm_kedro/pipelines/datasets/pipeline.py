"""Datasets: which are found, and where to get the others."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.datasets.nodes import list_datasets, write_datasets


def create_pipeline(**_: object) -> Pipeline:
    """The list of all datasets."""
    return Pipeline(
        [
            node(list_datasets, "params:data_root", "datasets", name="list_datasets"),
            node(write_datasets, "datasets", "summary_text", name="write_datasets"),
        ],
        namespace="datasets",
        outputs={"datasets"},
        parameters={"params:data_root"},
    )
