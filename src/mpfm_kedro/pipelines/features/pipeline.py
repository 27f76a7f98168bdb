"""Features: the frozen backbone over every sample and view, once."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from mpfm_kedro.pipelines.features.nodes import plan_features, plan_mpfm_features


def create_pipeline(baselines: bool = False) -> Pipeline:
    """The stage that every study shares; with ``baselines`` also the pseudo-anomalies that some of them read."""
    plan = plan_features if baselines else plan_mpfm_features
    read = ["samples", "images", "backbone_weights", "params:features", "params:compute"]
    return Pipeline([node(plan, read, "features", name="extract_features", tags="extract_features")])
