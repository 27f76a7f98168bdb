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

SIMPLE = "stack of simple scores"
FLOW_EPOCHS = 50  # of studies that train the flow where the configuration does not


class Ours:
    """MPFM as configured, and with some parameters changed."""

    def __init__(
        self,
        prototypes: PrototypeParameters,
        repairs: RepairParameters,
        training: TrainingParameters,
        backbone: str | list[str],
    ) -> None:
        self._n_backbones = 1 if isinstance(backbone, str) else len(backbone)
        self._groups: dict[str, Group] = {"prototypes": prototypes, "repairs": repairs, "training": training}

    def __call__(self, name: str = TRAINED, trained: bool = True, **changes: dict[str, Any]) -> Specification:
        """MPFM under a name, with changes by group of parameters."""
        changed: dict[str, Any] = {
            group: parameters.model_validate({**parameters.model_dump(), **changes.get(group, {})})
            for group, parameters in self._groups.items()
        }
        return specify_mpfm(name, **changed, trained=trained, n_backbones=self._n_backbones)

    def untrained(self) -> Specification:
        """MPFM before it has learned from any anomaly."""
        return self(UNTRAINED, trained=False)

    def simple(self) -> Specification:
        """The same stack of scores over a single Gaussian of images and one of patches: no mixture, no prototypes."""
        stack = self(SIMPLE, prototypes={"max_modes": 1, "n_prototypes": 1}, training={"epochs": 0})
        return stack.model_copy(update={"kind": "reference"})


def setting_specifications(
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    backbone: Any = "",  # a name or a list; Kedro warns of union types
) -> list[Specification]:
    """A setting's two rows: MPFM, and MPFM before it has learned from any anomaly."""
    ours = Ours(prototypes, repairs, training, backbone)
    return [ours(), ours.untrained()]


def compared_specifications(
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    comparison: ComparisonParameters,
    backbone: Any = "",  # a name or a list; Kedro warns of union types
) -> list[Specification]:
    """MPFM, every baseline and reference, MPFM that knows no anomaly; or those that are named."""
    from mpfm_kedro.detectors.registry import baselines  # with torch, which is slow to import

    ours = Ours(prototypes, repairs, training, backbone)
    others = [detector.specify(comparison.steps) for detector in baselines()]
    found = [ours(), *others, ours.simple(), ours.untrained()]
    names = ["all", *(specification.name for specification in found)]
    wanted = {name for setting in comparison.settings for name in comparison.of(setting, 1).methods or []}
    if unknown := sorted(wanted - set(names)):
        raise InputError(f"Parameter 'comparison.methods' = {unknown}: not a method; there are {', '.join(names)}")
    return [specification for specification in found if {specification.name, "all"} & wanted]


def ablated_specifications(
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    backbone: Any = "",  # a name or a list; Kedro warns of union types
) -> list[Specification]:
    """MPFM without each of its parts, with each repair in its printed form, and with a trained flow."""
    ours = Ours(prototypes, repairs, training, backbone)
    flow = {"epochs": training.epochs or FLOW_EPOCHS}
    found = [
        ours(),
        ours.untrained(),
        ours("one mode", prototypes={"max_modes": 1}),
        ours("one prototype", prototypes={"n_prototypes": 1}),
    ]
    for kept in ("arn", "gan", "grn", "gar", "gr", "an"):
        without = " and ".join(f"M_{score}" for score in "garn" if score not in kept)
        found.append(ours(f"without {without}", training={"scores": list(kept)}))
    for repair in ("normality_target", "fusion"):
        found.append(ours(f"{repair} printed", repairs={repair: "printed"}))
    found += [
        ours("trained flow", training=flow),
        ours("trained flow, MIMR off", training=flow | {"mim_weight": 0.0}),
    ]
    for repair in ("mutual_information", "coupling", "transport_start"):
        found.append(ours(f"trained flow, {repair} printed", training=flow, repairs={repair: "printed"}))
    return found


def sensitivity_specifications(
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    sensitivity: SensitivityParameters,
    backbone: Any = "",  # a name or a list; Kedro warns of union types
) -> list[Specification]:
    """MPFM with other numbers of prototypes K, and with a trained flow and other weights λ of MIMR."""
    ours = Ours(prototypes, repairs, training, backbone)
    by_k = [ours(f"K={k}", prototypes={"n_prototypes": k}) for k in dict.fromkeys(sensitivity.n_prototypes)]
    return by_k + [
        ours(f"λ={weight:g}", training={"mim_weight": weight, "epochs": training.epochs or FLOW_EPOCHS})
        for weight in dict.fromkeys(sensitivity.mim_weight)
    ]
