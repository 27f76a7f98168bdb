"""Datasets: which are found, and where to get the others."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.datasets.nodes import list_datasets


def create_pipeline() -> Pipeline:
    """The list of all datasets."""
    written = ["datasets", "datasets_summary_text"]
    return Pipeline([node(list_datasets, "params:data_root", written, name="list_datasets")])
