"""What is compared: MPFM as configured, MPFM with something changed, rivals and references."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import ComparisonParameters, Group, SensitivityParameters
from mpfm_kedro.pipelines.scoring.nodes import TRAINED, UNTRAINED

MPFM_SECONDS, UNTRAINED_SECONDS = 55.0, 3.0  # a run on one core, as in baselines.method.Method


@dataclass(frozen=True)
class Variant:
    """One row of a table.

    Args:
        name: its name there.
        kind: ours, rival or reference.
        method: MPFM, MPFM at 0 iterations, or a baseline.
        changes: parameters that differ from the configured ones, by group.
        budget: what is spent on it, in words.
        seconds: about how long a run takes, to tell beforehand how long all of them take.
        note: how a rival differs from what its paper describes.
    """

    name: str
    kind: str
    method: str
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    budget: str = ""
    seconds: float = MPFM_SECONDS
    note: str = ""

    def changed(self, group: str, parameters: Group) -> Any:
        """The parameters of a group as this variant has them."""
        return parameters.model_validate({**parameters.model_dump(), **self.changes.get(group, {})})


def compared_methods(parameters: ComparisonParameters) -> list[Variant]:
    """MPFM, MPFM at 0 iterations and every baseline, or those that are named."""
    from mpfm_kedro.baselines import baselines

    found = [mpfm(TRAINED)]
    for method in baselines():
        found.append(Variant(method.name, method.kind, method.name, {}, method.budget, method.seconds, method.differs))
    found.append(untrained())
    if parameters.methods == ["all"]:
        return found
    names = [variant.name for variant in found]
    unknown = sorted(set(parameters.methods) - set(names))
    if unknown:
        raise InputError(f"Parameter 'comparison.methods' = {unknown}: not a method; there are all, {', '.join(names)}")
    return [variant for variant in found if variant.name in parameters.methods]


def ablated_variants() -> list[Variant]:
    """MPFM without each of its parts, each retrained, and with each repair in its printed form."""
    one_mode = {"max_modes": 1}  # and so one velocity; prototypes stay, for MIMR is nothing with one of them
    no_information = {"mim_weight": 0.0}
    variants = [
        mpfm(TRAINED),
        untrained(),
        mpfm("MPFL off", prototypes=one_mode),
        mpfm("MIMR off", training=no_information),
        mpfm("MPFL and MIMR off", prototypes=one_mode, training=no_information),
    ]
    for left in ("arn", "gan", "an", "grn", "gar"):
        without = " and ".join(f"M_{score}" for score in "garn" if score not in left)
        variants.append(mpfm(f"without {without}", training={"scores": list(left)}))
    for repair in ("mutual_information", "normality_target", "coupling", "transport_start", "fusion"):
        variants.append(mpfm(f"{repair} printed", repairs={repair: "printed"}))
    return variants


def sensitivity_variants(parameters: SensitivityParameters) -> list[Variant]:
    """MPFM with other numbers of prototypes K and other weights λ of MIMR."""
    by_k = [mpfm(f"K={k}", prototypes={"n_prototypes": k}) for k in parameters.n_prototypes]
    return by_k + [mpfm(f"λ={weight:g}", training={"mim_weight": weight}) for weight in parameters.mim_weight]


def untrained() -> Variant:
    """MPFM before its first training step."""
    return Variant(UNTRAINED, "ours", UNTRAINED, {}, "closed form", UNTRAINED_SECONDS)


def mpfm(name: str, **changes: dict[str, Any]) -> Variant:
    """MPFM with some parameters changed."""
    return Variant(name, "ours", TRAINED, changes)
