"""The model from its fitted pieces."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm, unpack
from mpfm_kedro.detectors.mpfm.mixture import PrototypeMixture
from mpfm_kedro.detectors.mpfm.model import MPFM


def initial_model(
    closed_form: ClosedForm, prototypes: Artefact, hidden: int, seed: int, precision: str = "fp32"
) -> MPFM:
    """The model before training; the network's first weights come from the seed."""
    state = prototypes.tensors
    mixture = PrototypeMixture(state["mean"], state["logit"].exp(), state["scale"], state["log_volume"])
    mixture.load_state_dict(state)
    details = prototypes.details
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed every GPU too
        return MPFM(
            closed_form.standardiser.pooled_center,
            closed_form.standardiser.pooled_spread,
            closed_form.modes,
            mixture,
            closed_form.local_score,
            details["global_center"],
            details["global_spread"],
            hidden,
            details["transport_steps"],
            printed_start=closed_form.printed,
            precision=precision,
        )


def assemble(pieces: Mapping[str, Artefact], device: torch.device) -> MPFM:
    """The model as trained, or before training if there is no such piece."""
    trained = pieces.get("trained")
    hidden, precision = (trained.details["hidden"], trained.details["precision"]) if trained else (1, "fp32")
    model = initial_model(unpack(pieces["closed_form"]), pieces["prototypes"], hidden, 0, precision)
    if trained:
        load_trained(model, trained.tensors)
    return model.to(device)


def load_trained(model: MPFM, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set what training changes: every parameter, no buffer."""
    _, unexpected = model.load_state_dict(tensors, strict=False)
    missing = [name for name, _ in model.named_parameters() if name not in tensors]
    if unexpected or missing:
        raise ValueError(f"the trained piece does not fit the model: missing {missing}, unexpected {unexpected}")


def score_rows(model: MPFM, rows: FeatureRows) -> tuple[np.ndarray, np.ndarray]:
    """The four scores (n, 4) and the mode (n,) of many images."""
    device = model.pooled_center.device
    parts, modes = [np.empty((0, 4))], [np.empty(0, dtype=int)]
    for piece, maps in rows.map_batches():
        scores, mode = model.score(torch.from_numpy(rows.pooled[piece]).to(device), maps.to(device))
        parts.append(torch.stack(scores, dim=1).cpu().double().numpy())
        modes.append(mode.cpu().numpy())
    return np.concatenate(parts), np.concatenate(modes)
