"""MPFM as plain data: which pieces it is fitted in, and which parameters each of them depends on."""

from __future__ import annotations

from mpfm_kedro.detectors.pieces import Piece, Specification, piece_name
from mpfm_kedro.parameters import Group, PrototypeParameters, RepairParameters, TrainingParameters

ROOM = "mpfm_kedro.detectors.mpfm"
SECONDS = {"closed_form": 11.0, "flow": 30.0, "heads": 8.5, "calibrated": 0.17}  # see detectors.pieces.Piece
PRINTED_FACTOR = 8  # a network that makes all velocities takes longer
FLOW = (
    *("epochs", "iterations_per_epoch", "normals_per_batch", "anomalies_per_batch", "pseudo_share"),
    *("learning_rate", "weight_decay", "clip_norm", "mim_weight", "mim_sharpness", "push_margin"),
    *("transport_steps", "hidden", "precision"),
)


def specify_mpfm(
    name: str,
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    trained: bool = True,
    n_backbones: int = 1,
) -> Specification:
    """MPFM with these parameters; not trained, it is its closed form, which has learned from no anomaly.

    Each backbone has a closed form and heads of its own, and all scores are calibrated together. A flow is trained on
    the first backbone.
    """
    steps = training.epochs * training.iterations_per_epoch
    batch = training.normals_per_batch + training.anomalies_per_batch
    closed_form = _chosen(prototypes, "max_modes", "min_mode_size", "n_prototypes", "unseen_normals")
    closed_form |= _chosen(training, "top_share")
    backbones = range(n_backbones)
    pieces = [_piece("closed_form", closed_form | {"backbone": number}, backbone=number) for number in backbones]
    if trained:
        own = _chosen(
            training, "head_steps", "head_members", "head_top_shares", "normals_per_batch", "anomalies_per_batch"
        )
        own |= _chosen(repairs, "normality_target")
        factor = training.head_steps / 500 * training.head_members * len(training.head_top_shares) / 6
        pieces += [
            _piece("heads", own | {"backbone": number}, "learned", supervised=True, factor=factor, backbone=number)
            for number in backbones
        ]
    if trained and steps:  # after the heads, which are the same with every flow
        own = _chosen(training, *FLOW) | {"n_prototypes": prototypes.n_image_prototypes}
        own |= _chosen(repairs, "mutual_information", "coupling", "transport_start")
        factor = steps / 1000 * (PRINTED_FACTOR if repairs.transport_start == "printed" else 1)
        pieces.append(_piece("flow", own, module="flow_training", supervised=True, factor=factor))
    calibrated = _chosen(repairs, "fusion") | _chosen(training, "scores") | {"n_backbones": n_backbones}
    pieces.append(_piece("calibrated", calibrated, module="calibration", supervised=trained))
    spent = [f"{steps:,} steps of the flow"] * bool(steps) + [f"{training.head_steps:,} steps of {batch}"]
    return Specification(
        name=name,
        kind="ours",
        pieces=tuple(pieces),
        load=f"{ROOM}.detector:load",
        budget=" and ".join(spent) if trained else "closed form",
    )


def _piece(
    name: str,
    parameters: dict[str, object],
    module: str = "",
    supervised: bool = False,
    factor: float = 1.0,
    backbone: int = 0,
) -> Piece:
    return Piece(
        name=piece_name(name, backbone),
        fit=f"{ROOM}.{module or name}:fit",
        parameters=parameters,
        supervised=supervised,
        random=True,
        seconds=factor * SECONDS[name],
    )


def _chosen(group: Group, *names: str) -> dict[str, object]:
    values = group.model_dump()
    return {name: values[name] for name in names}
