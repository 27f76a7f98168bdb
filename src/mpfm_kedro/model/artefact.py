"""A model as tensors and plain values, and back: what is stored of it, without pickle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpfm_kedro.model.calibration import Calibration
from mpfm_kedro.model.mixture import PrototypeMixture
from mpfm_kedro.model.modes import Modes
from mpfm_kedro.model.mpfm import MPFM, Standardiser
from mpfm_kedro.model.patches import PatchGroups

_SHARED = "velocity.modes."  # the velocity's start is the model's own modes
_MODES = ("weight", "mean", "basis", "variance", "remainder", "place")
_PATCHES = tuple(f"local_score.patches.{name}" for name in ("n_groups", "mean", "whitening", "scale"))
_CALIBRATION = ("center", "spread", "weight")


@dataclass(frozen=True)
class Artefact:
    """One model: its tensors, and everything else that JSON can hold."""

    tensors: dict[str, Tensor]
    details: dict[str, Any] = field(default_factory=dict)


def pack(model: MPFM, calibration: Calibration, extra: dict[str, Tensor], details: dict[str, Any]) -> Artefact:
    """The model, its calibration and further tensors as an artefact."""
    tensors = {f"model.{k}": v.cpu() for k, v in model.state_dict().items() if not k.startswith(_SHARED)}
    for name in _CALIBRATION:
        tensors[f"calibration.{name}"] = torch.from_numpy(np.ascontiguousarray(getattr(calibration, name)))
    tensors |= {f"extra.{name}": value for name, value in extra.items()}
    shape = {
        "hidden": model.velocity.mix.in_features,
        "transport_steps": model.transport_steps,
        "top_share": model.local_score.top_share,
        "printed_start": model.velocity.modes is None,
    }
    return Artefact(
        {k: v.contiguous() for k, v in tensors.items()},
        {"shape": shape, "compressed": calibration.compressed, **details},
    )


def unpack(artefact: Artefact) -> MPFM:
    """The model of an artefact."""
    state = {k.removeprefix("model."): v for k, v in artefact.tensors.items() if k.startswith("model.")}
    shape = artefact.details["shape"]
    model = MPFM(
        Standardiser(
            state["pooled_center"], state["pooled_spread"], state["local_score.center"], state["local_score.spread"]
        ),
        Modes(*(state[f"modes.{name}"] for name in _MODES)),
        PrototypeMixture(state["prototypes.mean"], torch.ones(len(state["prototypes.mean"])), 1.0),
        global_center=0.0,
        global_spread=1.0,
        hidden=shape["hidden"],
        transport_steps=shape["transport_steps"],
        top_share=shape["top_share"],
        patches=PatchGroups(*(state[name] for name in _PATCHES)) if _PATCHES[0] in state else None,
        printed_start=shape["printed_start"],
    )
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or any(not name.startswith(_SHARED) for name in missing):
        raise ValueError(f"the artefact does not fit the model: missing {missing}, unexpected {unexpected}")
    return model


def unpack_calibration(artefact: Artefact) -> Calibration:
    """The calibration of an artefact."""
    arrays = {name: artefact.tensors[f"calibration.{name}"].numpy() for name in _CALIBRATION}
    return Calibration(**arrays, compressed=artefact.details["compressed"])
