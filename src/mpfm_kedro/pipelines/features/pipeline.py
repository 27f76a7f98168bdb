"""Features: the frozen backbone over every sample and view, once."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.features.nodes import extract_features, plan_mpfm_views, plan_views


def create_pipeline(baselines: bool = False, **_: object) -> Pipeline:
    """The stage that every study shares; with ``baselines`` also the pseudo-anomalies that some of them read."""
    plan = plan_views if baselines else plan_mpfm_views
    return Pipeline(
        [
            node(plan, ["samples", "params:image_size", "params:features"], "views", name="plan_views"),
            node(
                extract_features,
                ["views", "images", "backbone_weights", "feature_store", "params:device", "params:features"]
                + ["params:compute"],
                "features",
                name="extract_features",
            ),
        ],
        namespace="features",
        prefix_datasets_with_namespace=False,
    )
