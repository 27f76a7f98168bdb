"""Copies of results, and the record of what they were made from."""

from __future__ import annotations

from typing import Any

from mpfm_kedro.io.artefacts import ArtefactFile
from mpfm_kedro.io.feature_store import Features
from mpfm_kedro.parameters import Group
from mpfm_kedro.provenance import code_revision


def keep(result: Any) -> Any:
    """Keep a copy in the versioned history."""
    return result


def record(parameters: dict[str, Any], features: Features, models: dict[str, ArtefactFile]) -> dict[str, Any]:
    """What the results of this version were made from: code, parameters, data, weights and models."""
    return {
        "revision": code_revision(),
        "data": features.digest,
        "weights": features.store.spec.weights_digest,
        "image_size": features.store.spec.image_size,
        "models": {run: artefact.digest() for run, artefact in models.items()},
        # Kedro hands out typed groups of parameters
        "parameters": {k: v.model_dump() if isinstance(v, Group) else v for k, v in parameters.items()},
    }
