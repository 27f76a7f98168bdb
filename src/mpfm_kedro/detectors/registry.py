"""All baselines and references, in the order of the tables."""

from mpfm_kedro.detectors.base import Baseline
from mpfm_kedro.detectors.baselines.ahl import AHL
from mpfm_kedro.detectors.baselines.classifiers import FLOS, MLEP, SAOE, DevNet
from mpfm_kedro.detectors.baselines.dpdl import DPDL
from mpfm_kedro.detectors.baselines.dra import DRA
from mpfm_kedro.detectors.baselines.references import (
    LogisticRegression,
    LogisticRegressionAndMahalanobis,
    Mahalanobis,
    MixtureOfModes,
    NearestNormals,
    PatchNeighbours,
)
from mpfm_kedro.errors import unknown


def baselines() -> list[type[Baseline]]:
    """Rebuilt baselines, then references."""
    rebuilt: list[type[Baseline]] = [DevNet, FLOS, SAOE, MLEP, DRA, AHL, DPDL]
    unsupervised: list[type[Baseline]] = [Mahalanobis, MixtureOfModes, NearestNormals, PatchNeighbours]
    return [*rebuilt, *unsupervised, LogisticRegression, LogisticRegressionAndMahalanobis]


def baseline(name: str) -> type[Baseline]:
    """The baseline or reference of this name."""
    by_name = {detector.name: detector for detector in baselines()}
    if name not in by_name:
        raise unknown("baseline", name, by_name)
    return by_name[name]
