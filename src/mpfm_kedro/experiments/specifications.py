"""What is compared: MPFM as configured, MPFM with something changed, baselines and references."""

from __future__ import annotations

from typing import Any

from mpfm_kedro.detectors.mpfm.specification import specify_mpfm
from mpfm_kedro.detectors.pieces import Specification
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.columns import TRAINED, UNTRAINED
from mpfm_kedro.parameters import (
    ComparisonParameters,
    Group,
    PrototypeParameters,
    RepairParameters,
    SensitivityParameters,
    TrainingParameters,
)


class Ours:
    """MPFM as configured, and with some parameters changed."""

    def __init__(
        self, prototypes: PrototypeParameters, repairs: RepairParameters, training: TrainingParameters
    ) -> None:
        self._groups: dict[str, Group] = {"prototypes": prototypes, "repairs": repairs, "training": training}

    def __call__(self, name: str = TRAINED, trained: bool = True, **changes: dict[str, Any]) -> Specification:
        """MPFM under a name, with changes by group of parameters."""
        changed: dict[str, Any] = {
            group: parameters.model_validate({**parameters.model_dump(), **changes.get(group, {})})
            for group, parameters in self._groups.items()
        }
        return specify_mpfm(name, **changed, trained=trained)

    def untrained(self) -> Specification:
        """MPFM before its first training step."""
        return self(UNTRAINED, trained=False)


def setting_specifications(
    prototypes: PrototypeParameters, repairs: RepairParameters, training: TrainingParameters
) -> list[Specification]:
    """A setting's two rows: MPFM, and MPFM before its first training step."""
    ours = Ours(prototypes, repairs, training)
    return [ours(), ours.untrained()]


def compared_specifications(
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    comparison: ComparisonParameters,
) -> list[Specification]:
    """MPFM, every baseline and reference, MPFM at 0 iterations; or those that are named."""
    from mpfm_kedro.detectors.registry import baselines  # with torch, which is slow to import

    steps = training.epochs * training.iterations_per_epoch
    ours = Ours(prototypes, repairs, training)
    found = [ours(), *(detector.specify(steps) for detector in baselines()), ours.untrained()]
    if comparison.methods == ["all"]:
        return found
    names = [specification.name for specification in found]
    if unknown := sorted(set(comparison.methods) - set(names)):
        raise InputError(f"Parameter 'comparison.methods' = {unknown}: not a method; there are all, {', '.join(names)}")
    return [specification for specification in found if specification.name in comparison.methods]


def ablated_specifications(
    prototypes: PrototypeParameters, repairs: RepairParameters, training: TrainingParameters
) -> list[Specification]:
    """MPFM without each of its parts, each trained again, and with each repair in its printed form."""
    ours = Ours(prototypes, repairs, training)
    one_mode = {"max_modes": 1}  # and so one velocity; prototypes stay, for MIMR is nothing with one of them
    no_information = {"mim_weight": 0.0}
    found = [
        ours(),
        ours.untrained(),
        ours("MPFL off", prototypes=one_mode),
        ours("MIMR off", training=no_information),
        ours("MPFL and MIMR off", prototypes=one_mode, training=no_information),
    ]
    for kept in ("arn", "gan", "an", "grn", "gar"):
        without = " and ".join(f"M_{score}" for score in "garn" if score not in kept)
        found.append(ours(f"without {without}", training={"scores": list(kept)}))
    for repair in RepairParameters.model_fields:
        found.append(ours(f"{repair} printed", repairs={repair: "printed"}))
    return found


def sensitivity_specifications(
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    sensitivity: SensitivityParameters,
) -> list[Specification]:
    """MPFM with other numbers of prototypes K and other weights λ of MIMR."""
    ours = Ours(prototypes, repairs, training)
    by_k = [ours(f"K={k}", prototypes={"n_prototypes": k}) for k in dict.fromkeys(sensitivity.n_prototypes)]
    return by_k + [
        ours(f"λ={weight:g}", training={"mim_weight": weight}) for weight in dict.fromkeys(sensitivity.mim_weight)
    ]
