"""MPFM as plain data: which pieces it is fitted in, and which parameters each of them depends on."""

from __future__ import annotations

from mpfm_kedro.detectors.pieces import Piece, Specification, piece_name
from mpfm_kedro.parameters import Group, PrototypeParameters, RepairParameters, TrainingParameters

PACKAGE = "mpfm_kedro.detectors.mpfm"
FITS = {"prototypes": "fit_prototypes", "training": "fit_modules", "calibration": "fit_calibration"}
# Raise one when a change of the code changes its numbers (tests/test_golden_numbers.py): it is then fitted again.
VERSIONS = {"prototypes": 1, "training": 1, "calibration": 1}
SCORING_VERSION = 1


def specify_mpfm(
    name: str,
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    trained: bool = True,
    step_0: bool = False,
    n_backbones: int = 1,
) -> Specification:
    """MPFM with these parameters.

    Args:
        name: of its row.
        prototypes: of the first stage.
        repairs: which forms are the printed ones.
        training: of the second stage.
        trained: False: it has learned from no anomaly.
        step_0: S_g and S_r are counted as they were before training.
        n_backbones: each has prototypes and modules of its own; all scores are calibrated together.
    """
    first = prototypes.model_dump() | _chosen(training, "top_share") | _chosen(repairs, "transport_start")
    second = training.model_dump(exclude={"scores", "top_share"}) | repairs.model_dump(exclude={"fusion"})
    last = _chosen(repairs, "fusion") | _chosen(training, "scores") | {"n_backbones": n_backbones, "step_0": step_0}
    backbones = range(n_backbones)
    steps = training.epochs * training.iterations_per_epoch
    pieces = [_piece("prototypes", first | {"backbone": number}, False, backbone=number) for number in backbones]
    if trained:
        pieces += [_piece("training", second | {"backbone": number}, True, number) for number in backbones]
    pieces.append(_piece("calibration", last, trained))
    batch = training.normals_per_batch + training.anomalies_per_batch
    return Specification(
        name=name,
        kind="ours",
        pieces=tuple(pieces),
        load=f"{PACKAGE}.detector:load",
        version=SCORING_VERSION,
        budget=f"{steps:,} steps of {batch}" if trained else "closed form",
    )


def _piece(name: str, parameters: dict[str, object], supervised: bool, backbone: int = 0) -> Piece:
    return Piece(
        name=piece_name(name, backbone),
        fit=f"{PACKAGE}.stages:{FITS[name]}",
        version=VERSIONS[name],
        parameters=parameters,
        supervised=supervised,
        random=True,
    )


def _chosen(group: Group, *names: str) -> dict[str, object]:
    values = group.model_dump()
    return {name: values[name] for name in names}
