"""Rivals and references behind one interface, on the features of one frozen backbone."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is imported where it is used: Kedro's start-up stays quick
    from mpfm_kedro.baselines.method import Method


@cache
def baselines() -> list[type[Method]]:
    """All of them, rivals first."""
    from mpfm_kedro.baselines.ahl import AHL
    from mpfm_kedro.baselines.devnet import DevNet
    from mpfm_kedro.baselines.dpdl import DPDL
    from mpfm_kedro.baselines.dra import DRA
    from mpfm_kedro.baselines.flos import FLOS
    from mpfm_kedro.baselines.mlep import MLEP
    from mpfm_kedro.baselines.patch_knn import PatchNeighbours
    from mpfm_kedro.baselines.references import (
        LogisticRegression,
        LogisticRegressionAndMahalanobis,
        Mahalanobis,
        MixtureOfModes,
        NearestNormals,
    )
    from mpfm_kedro.baselines.saoe import SAOE

    rivals: list[type[Method]] = [DevNet, FLOS, SAOE, MLEP, DRA, AHL, DPDL]
    without_anomalies: list[type[Method]] = [Mahalanobis, MixtureOfModes, NearestNormals, PatchNeighbours]
    return [*rivals, *without_anomalies, LogisticRegression, LogisticRegressionAndMahalanobis]


def baseline(name: str) -> type[Method]:
    """The one of this name."""
    return {method.name: method for method in baselines()}[name]
