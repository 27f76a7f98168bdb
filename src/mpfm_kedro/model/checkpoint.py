"""The state of an interrupted training as tensors and plain values, and back."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mpfm_kedro.model.artefact import Artefact
from mpfm_kedro.model.trainer import State


def save_state(state: State, details: dict[str, Any]) -> Artefact:
    """A training state as an artefact."""
    assert state.generator is not None
    # modes stand twice in a model's state: a copy of each tensor keeps them apart
    tensors: dict[str, Tensor] = {f"model.{k}": v.detach().cpu().clone() for k, v in state.model.items()}
    tensors["generator"] = state.generator.clone()
    for number, values in state.optimiser["state"].items():
        tensors |= {f"optimiser.{number}.{name}": value.cpu().clone() for name, value in values.items()}
    plain = {"epoch": state.epoch, "history": state.history, "groups": state.optimiser["param_groups"]}
    return Artefact(tensors, {**plain, **details})


def load_state(artefact: Artefact) -> State:
    """The training state of an artefact."""
    optimiser: dict[int, dict[str, Tensor]] = {}
    for name, value in artefact.tensors.items():
        if name.startswith("optimiser."):
            _, number, part = name.split(".")
            optimiser.setdefault(int(number), {})[part] = value
    return State(
        epoch=artefact.details["epoch"],
        model={k.removeprefix("model."): v for k, v in artefact.tensors.items() if k.startswith("model.")},
        optimiser={"state": optimiser, "param_groups": artefact.details["groups"]},
        generator=artefact.tensors["generator"],
        history=artefact.details["history"],
    )
