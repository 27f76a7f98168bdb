"""MPFM as plain data: which pieces it is fitted in, and which parameters each of them depends on."""

from __future__ import annotations

from mpfm_kedro.detectors.pieces import Piece, Specification
from mpfm_kedro.parameters import Group, PrototypeParameters, RepairParameters, TrainingParameters

ROOM = "mpfm_kedro.detectors.mpfm"
SECONDS = {"closed_form": 20.0, "prototypes": 2.0, "trained": 40.0, "calibrated": 3.0}  # see detectors.pieces.Piece
PRINTED_FACTOR = 8  # a network that makes all velocities takes longer


def specify_mpfm(
    name: str,
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    trained: bool = True,
) -> Specification:
    """MPFM with these parameters; not trained, it is MPFM at 0 iterations."""
    steps = training.epochs * training.iterations_per_epoch
    batch = training.normals_per_batch + training.anomalies_per_batch
    pieces = [
        _piece(
            "closed_form",
            _chosen(prototypes, "max_modes", "min_mode_size")
            | _chosen(repairs, "transport_start")
            | _chosen(training, "held_back_share", "top_share"),
        ),
        _piece(
            "prototypes",
            _chosen(prototypes, "n_prototypes") | _chosen(training, "held_back_share", "transport_steps"),
        ),
    ]
    if trained:
        known = set(TrainingParameters.model_fields) - {"top_share", "transport_steps"}
        own = _chosen(training, *sorted(known)) | _chosen(repairs, "mutual_information", "normality_target", "coupling")
        factor = steps / 1000 * (PRINTED_FACTOR if repairs.transport_start == "printed" else 1)
        pieces.append(_piece("trained", own, module="training", supervised=True, factor=factor))
    calibrated = _chosen(repairs, "fusion") | _chosen(training, "held_back_share", "scores")
    pieces.append(_piece("calibrated", calibrated, module="calibration", supervised=trained))
    return Specification(
        name=name,
        kind="ours",
        pieces=tuple(pieces),
        load=f"{ROOM}.detector:load",
        budget=f"{steps:,} steps of {batch}" if trained else "closed form",
    )


def _piece(
    name: str, parameters: dict[str, object], module: str = "", supervised: bool = False, factor: float = 1.0
) -> Piece:
    return Piece(
        name=name,
        fit=f"{ROOM}.{module or name}:fit",
        parameters=parameters,
        supervised=supervised,
        random=True,
        seconds=factor * SECONDS[name],
    )


def _chosen(group: Group, *names: str) -> dict[str, object]:
    values = group.model_dump()
    return {name: values[name] for name in names}
