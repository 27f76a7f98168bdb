"""What is fitted, as plain data: specifications of detectors and the pieces of their fits. No torch is needed here."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Plain(BaseModel):
    """Plain values that JSON can hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Piece(Plain):
    """One piece of a detector's fit.

    Args:
        name: of the piece; files are named after it.
        fit: the function that fits it, ``module:name``. It takes training data, the earlier pieces by name, parameters,
            seed and context.
        version: of its numbers, raised by whoever changes them; what was fitted by another version is fitted again.
        parameters: the parameters that the piece depends on, and no others.
        supervised: whether it learns from known anomalies.
        random: whether the seed matters.
    """

    name: str
    fit: str
    version: int = 1
    parameters: dict[str, Any]
    supervised: bool
    random: bool


class Specification(Plain):
    """A detector with its parameters: one row of a table.

    Args:
        name: its name in the table.
        kind: ours, baseline or reference.
        pieces: of the fit, in order; each may use all earlier ones.
        load: the function that makes a fitted detector of its pieces, ``module:name``.
        version: of the scores that it makes of these pieces.
        budget: what is spent on it, in words.
        note: how a baseline differs from what its paper describes.
    """

    name: str
    kind: str
    pieces: tuple[Piece, ...]
    load: str
    version: int = 1
    budget: str = ""
    note: str = ""


def piece_name(name: str, backbone: int) -> str:
    """The name of a piece that every backbone has; 0 is the first."""
    return name if backbone == 0 else f"{name}_{backbone + 1}"
