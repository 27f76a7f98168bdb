"""What is stored of a fit: modules as tensors, and back."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.mpfm.calibration import Calibration, PlainSum
from mpfm_kedro.detectors.mpfm.closed_form import ClosedForm, HeldOutNormals, Initialised
from mpfm_kedro.detectors.mpfm.flow import Flow
from mpfm_kedro.detectors.mpfm.groups import Groups
from mpfm_kedro.detectors.mpfm.modules import Logit, NormalityScore, ResidualScore, TopPositions
from mpfm_kedro.detectors.mpfm.objective import Forms, Modules
from mpfm_kedro.detectors.mpfm.patches import PatchPrototypes
from mpfm_kedro.detectors.mpfm.prototypes import PrototypeMixture
from mpfm_kedro.detectors.mpfm.standardiser import Standardiser
from mpfm_kedro.detectors.mpfm.training import State
from mpfm_kedro.detectors.mpfm.velocity import CoupledVelocity, NetworkVelocity, ResidualNetwork
from mpfm_kedro.detectors.mpfm.whitening import Whitening


def pack_initialised(initialised: Initialised, fold: np.ndarray) -> Artefact:
    """The closed forms of all rounds and what they say of held-out normals, with their folds (n,)."""
    last = len(initialised.closed_forms) - 1
    tensors = {f"standardiser.{k}": v for k, v in initialised.closed_forms[last].standardiser.state_dict().items()}
    for number, closed_form in enumerate(initialised.closed_forms):
        own = {k: v for k, v in closed_form.state_dict().items() if not k.startswith("standardiser.")}
        tensors |= {f"rounds.{number}.{name}": value for name, value in own.items()}
    tensors |= {f"held_out.{name}": value for name, value in vars(initialised.held_out).items()}
    tensors |= {"fold": torch.from_numpy(fold), "group": torch.from_numpy(initialised.group)}
    details = {"n_rounds": last + 1, "top_share": initialised.top_share, **initialised.details}
    return Artefact({name: value.detach().cpu().clone() for name, value in tensors.items()}, details)


def unpack_initialised(artefact: Artefact) -> tuple[Initialised, np.ndarray]:
    """The inverse of ``pack_initialised``."""
    details = artefact.details
    initialised = Initialised(
        [unpack_closed_form(artefact, number) for number in range(details["n_rounds"])],
        HeldOutNormals(**artefact.part("held_out")),
        artefact.tensors["group"].numpy(),
        details["top_share"],
        {name: details[name] for name in ("shrinkage", "modes_tried")},
    )
    return initialised, artefact.tensors["fold"].numpy()


def unpack_closed_form(artefact: Artefact, number: int | None = None) -> ClosedForm:
    """The closed form of one round, by default of the last."""
    number = artefact.details["n_rounds"] - 1 if number is None else number
    own = Artefact(artefact.part(f"rounds.{number}"))
    prototypes, velocity = own.part("flow.prototypes"), own.part("flow.velocity")
    flow = Flow(
        CoupledVelocity(velocity["center"], velocity["gain"]),
        PrototypeMixture(prototypes["mean"], prototypes["logit"].exp(), prototypes["scale"]).requires_grad_(False),
    )
    return ClosedForm(
        Standardiser(**artefact.part("standardiser")),
        Groups(**own.part("groups")),
        Whitening(**own.part("whitening")),
        PatchPrototypes(**own.part("patches")),
        flow,
    )


def unpack_modules(artefact: Artefact) -> Modules:
    """The trained modules of all rounds that are stored."""
    tensors = artefact.tensors
    mean = tensors["flow.prototypes.mean"]
    n_rounds, n_prototypes, d = mean.shape
    write = tensors["flow.velocity.network.write"]
    network = ResidualNetwork(n_rounds, d, write.shape[1], write.shape[2], torch.Generator())
    coupled = artefact.part("flow.velocity")
    velocity = (
        CoupledVelocity(coupled["center"], coupled["gain"], network)
        if "center" in coupled
        else NetworkVelocity(network, n_prototypes)
    )
    prototypes = PrototypeMixture(mean, torch.ones(n_rounds, n_prototypes), torch.ones(n_rounds))
    one = torch.ones(n_rounds)
    modules = Modules(
        Flow(velocity, prototypes, artefact.details["steps"]),
        Logit(one, one),
        ResidualScore(n_rounds, tensors["m_r.log_weight"].shape[2]),
        Logit(one, one),
        TopPositions(tensors["m_a.weight"], tensors["m_a.bias"], artefact.details["shares"]),
        NormalityScore(tensors["m_n.weight"], tensors["m_n.bias"]),
    )
    modules.load_state_dict(tensors)
    return modules.requires_grad_(False)


def unpack_forms(artefact: Artefact) -> Forms:
    """The objective that was trained."""
    return Forms(**artefact.details["forms"])


def pack_calibrations(calibrations: list[list[Calibration | PlainSum]]) -> Artefact:
    """The calibrations of all backbones and rounds."""
    tensors = {
        f"{backbone}.{number}.{name}": value.clone()
        for backbone, own in enumerate(calibrations)
        for number, each in enumerate(own)
        for name, value in each.state_dict().items()
    }
    return Artefact(tensors, {"n_backbones": len(calibrations), "n_rounds": len(calibrations[0])})


def unpack_calibration(artefact: Artefact, backbone: int, number: int | None = None) -> Calibration | PlainSum:
    """The calibration of one backbone in one round, by default the last."""
    number = artefact.details["n_rounds"] - 1 if number is None else number
    tensors = artefact.part(f"{backbone}.{number}")
    return Calibration(**tensors) if "knot" in tensors else PlainSum(**tensors)


def save_state(state: State) -> Artefact:
    """The state of an interrupted training."""
    assert state.generator is not None
    tensors: dict[str, Tensor] = {f"modules.{name}": value.cpu().clone() for name, value in state.modules.items()}
    tensors["generator"] = state.generator.clone()
    for number, values in state.optimiser["state"].items():
        tensors |= {f"optimiser.{number}.{name}": value.cpu().clone() for name, value in values.items()}
    plain = {"epoch": state.epoch, "history": state.history, "groups": state.optimiser["param_groups"]}
    return Artefact(tensors, plain)


def load_state(artefact: Artefact) -> State:
    """The inverse of ``save_state``."""
    optimiser: dict[int, dict[str, Tensor]] = {}
    for name, value in artefact.part("optimiser").items():
        number, part = name.split(".")
        optimiser.setdefault(int(number), {})[part] = value
    return State(
        epoch=artefact.details["epoch"],
        modules=artefact.part("modules"),
        optimiser={"state": optimiser, "param_groups": artefact.details["groups"]},
        generator=artefact.tensors["generator"],
        history=artefact.details["history"],
    )
