"""Methods name only what they change; each study has the methods that the paper compares."""

from __future__ import annotations

import pytest

from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import ComparisonParameters, Parameters, RepairParameters
from mpfm_kedro.pipelines.runs import draw_compared_runs
from mpfm_kedro.protocol.methods import (
    Method,
    ablated_methods,
    as_printed,
    compared_methods,
    configured_methods,
    from_json,
    rows_of_mpfm,
    to_json,
)
from mpfm_kedro.protocol.trials import list_trials
from protocol.small_tables import protocol, sample_table

SAMPLES = sample_table({"dent": 12, "hole": 11}, 20, 8)
METHODS = ["Mahalanobis", "logistic regression", "DevNet"]


@pytest.fixture
def compared(parameters: Parameters) -> ComparisonParameters:
    changes = {"methods": METHODS, "hard": {"n_seeds": 1, "methods": METHODS[:1]}}
    return ComparisonParameters.model_validate(parameters.comparison.model_dump() | changes)


def test_methods_survive_the_run_table(parameters):
    methods = [*compared_methods(parameters.comparison)["general"], *ablated_methods(parameters.ablation)]
    assert from_json(to_json(methods)) == methods
    for damaged in ('[{"name": "MPFM", "scale": 2}]', "[{", "5"):
        with pytest.raises(InputError, match="no valid methods"):
            from_json(damaged)


def test_a_change_that_is_not_a_valid_parameter_is_refused(parameters):
    wrong = Method(name="K=0", prototypes={"n_prototypes": 0})
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        wrong.changed("prototypes", parameters.prototypes)


def test_each_setting_of_a_comparison_has_its_own_seeds_and_methods(compared):
    runs = draw_compared_runs(SAMPLES, protocol(n_seeds=3), compared)
    found = {
        setting: {(trial.method.name, trial.run["seed"]) for trial in list_trials(own)}
        for setting, own in runs.groupby("setting")
    }
    assert found["general"] == {(name, seed) for name in METHODS for seed in range(3)}
    assert found["hard"] == {("Mahalanobis", 0)}


def test_an_unknown_method_of_a_setting_is_named(compared):
    wrong = ComparisonParameters.model_validate(compared.model_dump() | {"hard": {"methods": ["DRAA"]}})
    with pytest.raises(InputError, match=r"DRAA.*DRA"):
        compared_methods(wrong)


def test_what_is_printed_has_every_repair_off_and_one_row_of_its_own_name(parameters):
    printed = ablated_methods(parameters.ablation)[-1]
    assert printed == as_printed()
    assert printed.changed("repairs", parameters.repairs).is_as_printed
    training = printed.changed("training", parameters.training)
    assert (training.head_epochs, training.head_members) == (parameters.training.epochs, 1)
    off = RepairParameters(**dict.fromkeys(RepairParameters.model_fields, "printed"))
    assert [method.name for method in configured_methods(rows_of_mpfm(), off)] == ["MPFM as printed"]
    assert configured_methods([*rows_of_mpfm(), printed], off) == [printed]
    assert configured_methods(rows_of_mpfm(), parameters.repairs) == rows_of_mpfm()


def test_the_printed_form_is_compared_where_it_is_named(compared):
    for chosen, expected in ((["all"], 0), (["MPFM", "MPFM as printed"], 1), (["MPFM as printed"], 1)):
        methods = compared_methods(compared.model_copy(update={"methods": chosen}))
        assert [row.name for row in methods["general"]].count("MPFM as printed") == expected


def test_the_ablation_changes_one_repair_at_a_time(parameters):
    repairs = [method for method in ablated_methods(parameters.ablation) if method.name.endswith(" printed")][:-1]
    changed = {method.name: method.changed("repairs", parameters.repairs) for method in repairs}
    assert set(changed) == {f"{name} printed" for name in RepairParameters.model_fields}
    for name, own in changed.items():
        off = {repair for repair, form in own.model_dump().items() if form == "printed"}
        also = {"coupling"} if name == "transport_start printed" else set()
        assert off == {name.removesuffix(" printed")} | also
    parts = [
        method.training["scores"] for method in ablated_methods(parameters.ablation) if "scores" in method.training
    ]
    assert sorted("".join(scores) for scores in parts) == ["an", "arn", "gan", "gar", "gr", "grn"]
