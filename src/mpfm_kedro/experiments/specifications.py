"""What is compared: MPFM as configured, MPFM with something changed, baselines and references."""

from __future__ import annotations

from typing import Any

from mpfm_kedro.detectors.mpfm.specification import specify_mpfm
from mpfm_kedro.detectors.pieces import Specification
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.columns import AS_PRINTED, AT_STEP_0, TRAINED, UNTRAINED
from mpfm_kedro.parameters import (
    AblationParameters,
    ComparisonParameters,
    Group,
    PrototypeParameters,
    RepairParameters,
    SensitivityParameters,
    TrainingParameters,
)

SIMPLE = "stack of simple scores"


class Ours:
    """MPFM as configured, and with some parameters changed."""

    def __init__(
        self,
        prototypes: PrototypeParameters,
        repairs: RepairParameters,
        training: TrainingParameters,
        backbone: str | list[str],
    ) -> None:
        self._epochs = training.epochs
        self._n_backbones = 1 if isinstance(backbone, str) else len(backbone)
        self._groups: dict[str, Group] = {"prototypes": prototypes, "repairs": repairs, "training": training}

    def __call__(
        self, name: str | None = None, trained: bool = True, step_0: bool = False, **changes: dict[str, Any]
    ) -> Specification:
        """MPFM under a name, by default that of its configuration, with changes by group of parameters."""
        changed: dict[str, Any] = {
            group: parameters.model_validate({**parameters.model_dump(), **changes.get(group, {})})
            for group, parameters in self._groups.items()
        }
        named = name or (AS_PRINTED if changed["repairs"].is_as_printed else TRAINED)
        return specify_mpfm(named, **changed, trained=trained, step_0=step_0, n_backbones=self._n_backbones)

    def untrained(self) -> Specification:
        """MPFM before it has learned from any anomaly."""
        return self(UNTRAINED, trained=False)

    def at_step_0(self) -> Specification:
        """MPFM with its flow as it was before training; M_a and M_n have learned."""
        return self(AT_STEP_0, step_0=True)

    def as_printed(self) -> Specification:
        """MPFM with every repair off, on the same features."""
        one_head = {"head_top_shares": [0.1], "head_members": 1, "head_decays": 0}
        rates = {"head_learning_rate": 2e-4, "normality_learning_rate": 2e-4}
        return self(
            AS_PRINTED,
            prototypes={"folds": 2},
            repairs=dict.fromkeys(RepairParameters.model_fields, "printed"),
            training=one_head | rates | {"head_epochs": self._epochs, "transport_steps": 4},
        )

    def rows(self) -> list[Specification]:
        """MPFM as configured, at step 0 and without known anomalies."""
        configured = self()
        return [configured] if configured.name == AS_PRINTED else [configured, self.at_step_0(), self.untrained()]

    def simple(self) -> Specification:
        """The same stack of scores over a single Gaussian of images and one of patches: no mixture, no prototypes."""
        stack = self(SIMPLE, step_0=True, prototypes={"max_modes": 1, "n_prototypes": 1, "n_patch_prototypes": 1})
        return stack.model_copy(update={"kind": "reference"})


def setting_specifications(
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    backbone: Any = "",  # a name or a list; Kedro warns of union types
) -> list[Specification]:
    """A setting's rows: MPFM, MPFM at step 0, and MPFM before it has learned from any anomaly."""
    return Ours(prototypes, repairs, training, backbone).rows()


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
    configured, *variants = ours.rows()
    found = [configured, *others, ours.simple(), *variants]
    names = ["all", *(specification.name for specification in found)]
    wanted = {name for setting in comparison.settings for name in comparison.of(setting, 1).methods or []}
    if unknown := sorted(wanted - set(names)):
        raise InputError(f"Parameter 'comparison.methods' = {unknown}: not a method; there are {', '.join(names)}")
    return [specification for specification in found if {specification.name, "all"} & wanted]


def ablated_specifications(
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    ablation: AblationParameters,
    backbone: Any = "",  # a name or a list; Kedro warns of union types
) -> list[Specification]:
    """MPFM, then the parts of the ablation: figure 2 and table 3 of the paper, each repair in its printed form."""
    ours = Ours(prototypes, repairs, training, backbone)
    parts = {"figure_2": without_mixture, "table_3": without_modules, "repairs": without_repairs}
    return [
        *ours.rows(),
        *(variant for part, variants in parts.items() if part in ablation.parts for variant in variants(ours)),
    ]


def without_mixture(ours: Ours) -> list[Specification]:
    """Figure 2 of the paper: without mixture prototypes (K = 1), without mutual information (λ = 0), without both."""
    one = {"n_prototypes": 1}
    off = {"mim_weight": 0.0}
    return [
        ours("without MPFL", prototypes=one),
        ours("without MIMR", training=off),
        ours("without MPFL and MIMR", prototypes=one, training=off),
    ]


def without_modules(ours: Ours) -> list[Specification]:
    """Table 3 of the paper: without each of the four modules, and without two of them."""
    found = []
    for kept in ("arn", "gan", "grn", "gar", "gr", "an"):
        without = " and ".join(f"M_{score}" for score in "garn" if score not in kept)
        found.append(ours(f"without {without}", training={"scores": list(kept)}))
    return found


def without_repairs(ours: Ours) -> list[Specification]:
    """Each repair in its printed form, then all of them."""
    found = []
    for repair in RepairParameters.model_fields:
        printed = {repair: "printed"} | ({"coupling": "printed"} if repair == "transport_start" else {})
        found.append(ours(f"{repair} printed", repairs=printed))
    return [*found, ours.as_printed()]


def sensitivity_specifications(
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    sensitivity: SensitivityParameters,
    backbone: Any = "",  # a name or a list; Kedro warns of union types
) -> list[Specification]:
    """Table 4 of the paper: MPFM with other numbers of prototypes K and other weights λ of MIMR."""
    ours = Ours(prototypes, repairs, training, backbone)
    by_k = [ours(f"K={k}", prototypes={"n_prototypes": k}) for k in dict.fromkeys(sensitivity.n_prototypes)]
    return by_k + [
        ours(f"λ={weight:g}", training={"mim_weight": weight}) for weight in dict.fromkeys(sensitivity.mim_weight)
    ]
