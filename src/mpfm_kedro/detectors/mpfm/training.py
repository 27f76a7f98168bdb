"""Training of flow, prototypes and heads, from the closed form and its prototypes; resumes from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm.assembly import initial_model
from mpfm_kedro.detectors.mpfm.checkpoint import load_state, save_state
from mpfm_kedro.detectors.mpfm.closed_form import ROWS_AT_ONCE, ClosedForm, closed_form_start, local_evidence, unpack
from mpfm_kedro.detectors.mpfm.division import Division, divide
from mpfm_kedro.detectors.mpfm.heads import LocalEvidence
from mpfm_kedro.detectors.mpfm.model import MPFM
from mpfm_kedro.detectors.mpfm.modes import Path, Start
from mpfm_kedro.detectors.mpfm.objective import Options
from mpfm_kedro.detectors.mpfm.trainer import Schedule, State, TrainingSet, TransportedRows, train


def fit(
    data: TrainingData, earlier: Mapping[str, Artefact], parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """Train from the last checkpoint, and return what training changed."""
    closed_form = unpack(earlier["closed_form"])
    network = {name: parameters[name] for name in ("hidden", "precision")}
    model = initial_model(closed_form, earlier["prototypes"], seed=seed, **network).to(context.device)
    division = divide(data, parameters["held_back_share"], seed)
    stored = context.checkpoint.load() if context.checkpoint else None

    def save(state: State) -> None:
        if context.checkpoint:
            context.checkpoint.save(save_state(state))

    history = train(
        model,
        training_set(model, closed_form, division, seed, parameters["coupling"] == "repaired"),
        Schedule(**{name: parameters[name] for name in Schedule.__dataclass_fields__}),
        objective_options(parameters, data.n_known),
        seed,
        load_state(stored) if stored else None,
        save,
    )
    tensors = {name: value.detach().cpu() for name, value in model.named_parameters()}
    return Artefact(tensors, {**network, "history": history})


def objective_options(parameters: Mapping[str, Any], n_anomalies: int) -> Options:
    """The objective's weights and forms; the more anomalies are known, the less the pseudo-anomalies count."""
    return Options(
        mim_weight=parameters["mim_weight"],
        mim_sharpness=parameters["mim_sharpness"],
        push_margin=parameters["push_margin"],
        head_penalty=parameters["head_penalty"],
        pseudo_weight=1 / max(1, n_anomalies),
        printed_mutual_information=parameters["mutual_information"] == "printed",
        printed_normality_target=parameters["normality_target"] == "printed",
        scores="".join(parameters["scores"]),
    )


def training_set(model: MPFM, closed_form: ClosedForm, division: Division, seed: int, coupled: bool) -> TrainingSet:
    """Every training image with its closed-form start, path and evidence; normals by modes fitted without them."""
    generator = torch.Generator().manual_seed(seed)
    groups = (division.normals, division.pseudo, division.anomalies)
    z = [closed_form.standardiser.z(rows) for rows in groups]
    paths: list[Path | None] = [None] * 3
    if coupled:
        paths = [_paths(model, own, generator) for own in z]
    starts: list[Start | None] = [None] * 3
    evidence: list[LocalEvidence | None] = [None] * 3
    if closed_form.starts is not None and model.transport_steps == 1:
        starts = [*closed_form.starts, closed_form_start(model.modes, z[2])]
    if closed_form.evidence is not None:
        of_anomalies = local_evidence(model.local_score, model.modes, z[2], division.anomalies)
        evidence = [*closed_form.evidence, of_anomalies]
    return TrainingSet(*(TransportedRows(*parts) for parts in zip(groups, starts, paths, evidence, strict=True)))


def _paths(model: MPFM, z: np.ndarray, generator: torch.Generator) -> Path:
    """The straight path of every image to its end in the prototype space."""
    device, paths = model.pooled_center.device, []
    with torch.inference_mode():
        for piece in torch.from_numpy(z).split(ROWS_AT_ONCE):
            start = piece.to(device)
            paths.append([part.cpu() for part in model.modes.path(start, model.modes.endpoint(start, generator))])
    return Path(*(torch.cat(parts) for parts in zip(*paths, strict=True)))
