"""Methods: the rows of a table. A variant of MPFM names only what it changes; parameters are inputs of the nodes."""

import json
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.columns import AS_PRINTED, AT_STEP_0, TRAINED, UNTRAINED
from mpfm_kedro.parameters import (
    AblationParameters,
    ComparisonParameters,
    Group,
    RepairParameters,
    SensitivityParameters,
    TrainingParameters,
)

SIMPLE = "stack of simple scores"
OURS, REFERENCE = "ours", "reference"
OneGroup = TypeVar("OneGroup", bound=Group)


class Method(BaseModel):
    """A method: MPFM with changed parameters of some groups, or a baseline by its name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kind: str = OURS  # or baseline, reference
    mpfm: bool = True
    trained: bool = True  # False: it has learned from no anomaly
    step_0: bool = False  # S_g and S_r count as they were before training
    prototypes: dict[str, Any] = {}
    repairs: dict[str, Any] = {}
    training: dict[str, Any] = {}

    def changed(self, group: str, parameters: OneGroup) -> OneGroup:
        """A group of parameters as this method has it; ``head_epochs`` None is all epochs."""
        values = {**parameters.model_dump(), **getattr(self, group)}
        if values.get("head_epochs", 0) is None:
            values["head_epochs"] = values["epochs"]
        return parameters.model_validate(values)


def rows_of_mpfm() -> list[Method]:
    """MPFM, at step 0, and before it has learned from any anomaly."""
    return [Method(name=TRAINED), Method(name=AT_STEP_0, step_0=True), Method(name=UNTRAINED, trained=False)]


def as_printed() -> Method:
    """MPFM with every repair off, on the same features."""
    one_head = {"head_top_shares": [0.1], "head_members": 1, "head_decays": 0, "head_epochs": None}
    rates = {"head_learning_rate": 2e-4, "normality_learning_rate": 2e-4}
    return Method(
        name=AS_PRINTED,
        prototypes={"folds": 2},
        repairs=dict.fromkeys(RepairParameters.model_fields, "printed"),
        training=one_head | rates | {"transport_steps": 4},
    )


def compared_methods(comparison: ComparisonParameters) -> dict[str, list[Method]]:
    """The methods of each setting: MPFM, every baseline and reference; or those that are named, also as printed."""
    from mpfm_kedro.detectors.registry import baselines  # with torch, which is slow to import

    one = {"max_modes": 1, "n_prototypes": 1, "n_patch_prototypes": 1}
    simple = Method(name=SIMPLE, kind=REFERENCE, step_0=True, prototypes=one)
    mpfm, *variants = rows_of_mpfm()
    others = [Method(name=detector.name, kind=detector.kind, mpfm=False) for detector in baselines()]
    methods = [mpfm, *others, simple, *variants]
    named = [*methods, as_printed()]
    names = ["all", *(method.name for method in named)]
    wanted = {str(setting): comparison.of(setting, 1).methods or [] for setting in comparison.settings}
    if unknown := sorted({name for chosen in wanted.values() for name in chosen} - {*names}):
        raise InputError(f"Parameter 'comparison.methods' = {unknown}: not a method; there are {', '.join(names)}")
    return {
        setting: [method for method in named if method.name in chosen or ("all" in chosen and method in methods)]
        for setting, chosen in wanted.items()
    }


def ablated_methods(ablation: AblationParameters) -> list[Method]:
    """MPFM, then the parts of the ablation: figure 2 and table 3 of the paper, each repair in its printed form."""
    parts = {"figure_2": without_mixture, "table_3": without_modules, "repairs": without_repairs}
    chosen = (variants() for part, variants in parts.items() if part in ablation.parts)
    return [*rows_of_mpfm(), *(method for variants in chosen for method in variants)]


def without_mixture() -> list[Method]:
    """Figure 2 of the paper: without mixture prototypes (K = 1), without mutual information (λ = 0), without both."""
    one, off = {"n_prototypes": 1}, {"mim_weight": 0.0}
    return [
        Method(name="without MPFL", prototypes=one),
        Method(name="without MIMR", training=off),
        Method(name="without MPFL and MIMR", prototypes=one, training=off),
    ]


def without_modules() -> list[Method]:
    """Table 3 of the paper: without each of the four modules, and without two of them."""
    kept_scores = ("arn", "gan", "grn", "gar", "gr", "an")
    removed = [" and ".join(f"M_{score}" for score in "garn" if score not in kept) for kept in kept_scores]
    return [
        Method(name=f"without {names}", training={"scores": list(kept)})
        for names, kept in zip(removed, kept_scores, strict=True)
    ]


def without_repairs() -> list[Method]:
    """Each repair in its printed form, then all of them."""
    needed = {"transport_start": {"coupling": "printed"}}
    variants = [
        Method(name=f"{repair} printed", repairs={repair: "printed"} | needed.get(repair, {}))
        for repair in RepairParameters.model_fields
    ]
    return [*variants, as_printed()]


def sensitivity_methods(sensitivity: SensitivityParameters) -> list[Method]:
    """Table 4 of the paper: MPFM with other numbers of prototypes K and other weights λ of MIMR."""
    by_k = [Method(name=f"K={k}", prototypes={"n_prototypes": k}) for k in dict.fromkeys(sensitivity.n_prototypes)]
    return by_k + [
        Method(name=f"λ={weight:g}", training={"mim_weight": weight})
        for weight in dict.fromkeys(sensitivity.mim_weight)
    ]


def configured_methods(methods: Iterable[Method], repairs: RepairParameters) -> list[Method]:
    """The methods of a run: where every repair is off, MPFM is MPFM as printed, which has no step 0 of its own."""
    if not repairs.is_as_printed:
        return list(methods)
    renamed = (
        method.model_copy(update={"name": AS_PRINTED}) if method.name == TRAINED else method
        for method in methods
        if method.name not in (AT_STEP_0, UNTRAINED)
    )
    return list({method.name: method for method in renamed}.values())


def describe_methods(methods: Iterable[Method], training: TrainingParameters, steps: int) -> list[dict[str, str]]:
    """Kind, budget and note of each method, for the tables."""
    from mpfm_kedro.detectors.registry import baseline  # with torch, which is slow to import

    described = []
    for method in methods:
        row = {"method": method.name, "kind": method.kind, "budget": "closed form", "note": ""}
        if not method.mpfm:
            detector = baseline(method.name)
            row |= {"budget": detector.budget.format(steps=f"{steps:,}"), "note": detector.differs}
        elif method.trained:
            changed = method.changed("training", training)
            batch = changed.normals_per_batch + changed.anomalies_per_batch
            row["budget"] = f"{changed.epochs * changed.iterations_per_epoch:,} steps of {batch}"
        described.append(row)
    return described


def to_json(methods: Iterable[Method]) -> str:
    """Methods as they stand in the run table: names and changes, no other parameter."""
    return json.dumps([method.model_dump(exclude_defaults=True) for method in methods], ensure_ascii=False)


def from_json(content: str) -> list[Method]:
    """The methods of a run."""
    try:
        return [Method(**method) for method in json.loads(content)]
    except (TypeError, ValueError, ValidationError) as error:
        raise InputError("The table of runs has no valid methods; run the pipeline again from the node runs") from error
