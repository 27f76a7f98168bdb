"""Training of the flow: residual velocity, prototypes and M_g, from their closed form; resumes from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm.checkpoint import load_state, save_state
from mpfm_kedro.detectors.mpfm.closed_form import ROWS_AT_ONCE, CrossFitted, closed_form_start, unpack
from mpfm_kedro.detectors.mpfm.flow import FLOW_OPTIONS, Flow
from mpfm_kedro.detectors.mpfm.mode_fitting import build_modes, spectra_of
from mpfm_kedro.detectors.mpfm.modes import Modes, Path, Start
from mpfm_kedro.detectors.mpfm.objective import Options
from mpfm_kedro.detectors.mpfm.prototypes import fit_prototypes, printed_prototypes
from mpfm_kedro.detectors.mpfm.trainer import Schedule, State, TrainingSet, TransportedRows, train


def fit(
    data: TrainingData, earlier: Mapping[str, Artefact], parameters: Mapping[str, Any], seed: int, context: Context
) -> Artefact:
    """Train from the last checkpoint; what is stored has the S_g of the training normals by modes without them."""
    data = data.of_backbone(0)
    closed_forms = unpack(earlier["closed_form"])
    printed = parameters["transport_start"] == "printed"
    start = None if printed else unseen_start(closed_forms, data.normals)
    z = closed_forms.final.standardiser.z(data.normals)
    flow = initial_flow(closed_forms, z, start, parameters, seed).to(context.device)
    stored = context.checkpoint.load() if context.checkpoint else None

    def save(state: State) -> None:
        if context.checkpoint:
            context.checkpoint.save(save_state(state))

    history = train(
        flow,
        training_set(flow, closed_forms, data, start, seed, parameters["coupling"] == "repaired"),
        Schedule(**{name: parameters[name] for name in Schedule.__dataclass_fields__}),
        objective_options(parameters, data.n_known),
        seed,
        load_state(stored) if stored else None,
        save,
    )
    tensors = {
        f"flow.{name}": value.detach().cpu() for name, value in flow.state_dict().items() if "modes." not in name
    }
    tensors["normals"] = torch.from_numpy(flow.score(z, start))
    options = {name: parameters[name] for name in FLOW_OPTIONS if name in parameters}
    return Artefact(tensors, {**options, "printed_start": printed, "history": history})


def initial_flow(
    closed_forms: CrossFitted, z: np.ndarray, start: Start | None, parameters: Mapping[str, Any], seed: int
) -> Flow:
    """The flow before training, with prototypes of z (n, d); the network's first weights come from the seed."""
    modes = closed_forms.final.modes
    if start is None:
        unseen, prototypes = torch.from_numpy(z).float(), printed_prototypes(z, parameters["n_prototypes"], seed)
    else:
        psi = closed_form_start(modes, z).psi.numpy()
        prototypes = fit_prototypes(psi, modes, closed_forms.labels, parameters["n_prototypes"], seed)
        unseen = start.psi
    with torch.inference_mode():
        nll = -prototypes.log_prob(unseen) / z.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed every GPU too
        return Flow(
            modes,
            prototypes,
            float(nll.mean()),
            float(nll.std(correction=0)),
            parameters["hidden"],
            parameters["transport_steps"],
            printed_start=start is None,
            precision=parameters["precision"],
        )


def unseen_start(closed_forms: CrossFitted, normals: FeatureRows) -> Start:
    """The start of each normal by modes fitted without its fold: same partition and shrinkage, other covariances."""
    z, fold = closed_forms.final.standardiser.z(normals), closed_forms.fold
    psi, log_prob = torch.empty(z.shape), torch.empty(len(z), closed_forms.final.modes.n_modes)
    for number in range(int(fold.max()) + 1):
        own = fold == number
        psi[own], log_prob[own] = closed_form_start(_modes_without(closed_forms, z, own), z[own])
    return Start(psi, log_prob)


def _modes_without(closed_forms: CrossFitted, z: np.ndarray, left_out: np.ndarray) -> Modes:
    """The modes without some normals, whose target means stay those of the final ones."""
    final, labels = closed_forms.final.modes, closed_forms.labels[~left_out]
    spectra = spectra_of(z[~left_out], labels, final.n_modes)
    modes = build_modes(spectra, z[~left_out], labels, closed_forms.shrinkage)
    modes.target_mean.copy_(final.target_mean)
    return modes


def objective_options(parameters: Mapping[str, Any], n_anomalies: int) -> Options:
    """The objective's weights and forms; the more anomalies are known, the less the pseudo-anomalies count."""
    return Options(
        mim_weight=parameters["mim_weight"],
        mim_sharpness=parameters["mim_sharpness"],
        push_margin=parameters["push_margin"],
        pseudo_weight=1 / max(1, n_anomalies),
        printed_mutual_information=parameters["mutual_information"] == "printed",
    )


def training_set(
    flow: Flow, closed_forms: CrossFitted, data: TrainingData, start: Start | None, seed: int, coupled: bool
) -> TrainingSet:
    """Every training image with its closed-form start and path; normals by modes fitted without them."""
    generator = torch.Generator().manual_seed(seed)
    groups = []
    for rows, own_start in ((data.normals, start), (data.pseudo, None), (data.anomalies, None)):
        z = closed_forms.final.standardiser.z(rows).astype(np.float32)
        path = _paths(flow, z, generator) if coupled and len(z) else None
        if start is not None and flow.transport_steps == 1 and own_start is None and len(z):
            own_start = closed_form_start(flow.modes, z)
        groups.append(TransportedRows(z, own_start if flow.transport_steps == 1 else None, path))
    return TrainingSet(*groups)


def _paths(flow: Flow, z: np.ndarray, generator: torch.Generator) -> Path:
    """The straight path of every image to its end in the prototype space.

    They are the largest thing that training keeps, (2 J r + d) numbers of each image: parts are written in place, since
    joining them at the end would hold everything twice.
    """
    inside = len(z), flow.modes.n_modes, flow.modes.basis.shape[2]
    found = Path(torch.empty(z.shape), torch.empty(inside), torch.empty(inside))
    with torch.inference_mode():
        for first in range(0, len(z), ROWS_AT_ONCE):
            start = torch.from_numpy(z[first : first + ROWS_AT_ONCE]).to(flow.device)
            path = flow.modes.path(start, flow.modes.endpoint(start, generator))
            for whole, part in zip(found, path, strict=True):
                whole[first : first + len(start)] = part.cpu()
    return found
