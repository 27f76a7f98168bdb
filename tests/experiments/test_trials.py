"""Pieces are found again by what they were made from, and by nothing less."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kedro.config import OmegaConfigLoader
from test_run_data import fake_features, table

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.baselines.references import Mahalanobis
from mpfm_kedro.detectors.mpfm.specification import VERSIONS
from mpfm_kedro.detectors.pieces import Piece, Specification
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.cache import Cache
from mpfm_kedro.experiments.contents import learned_contents
from mpfm_kedro.experiments.protocol import make_study_runs
from mpfm_kedro.experiments.specifications import (
    SIMPLE,
    ablated_specifications,
    compared_specifications,
    sensitivity_specifications,
    setting_specifications,
)
from mpfm_kedro.experiments.trials import (
    Trial,
    _task_epochs,
    fit_piece,
    plan_pieces,
    plan_trials,
    read_trials,
)
from mpfm_kedro.parameters import Parameters, check_parameters

SAMPLES = table(20, 8, {"dent": 12, "hole": 11})
RUNS = make_study_runs(SAMPLES, "all", [10, 1], 2, 0)
CACHE = Cache(Path("cache"))


@pytest.fixture(scope="module")
def parameters() -> Parameters:
    conf = str(Path(__file__).parents[2] / "conf")
    return check_parameters(OmegaConfigLoader(conf, base_env="base", default_run_env="base")["parameters"])


@pytest.fixture
def features(tmp_path: Path) -> Features:
    return fake_features(SAMPLES, tmp_path)


def mpfm(parameters: Parameters) -> tuple:
    return parameters.prototypes, parameters.repairs, parameters.training


def named(parameters: Parameters, name: str) -> Specification:
    return next(one for one in compared_specifications(*mpfm(parameters), parameters.comparison) if one.name == name)


def trials_of(*specifications: Specification, runs=RUNS) -> list[Trial]:
    return read_trials(plan_trials(runs, list(specifications)), runs)


def plan(trials: list[Trial], features: Features) -> dict[str, str]:
    """Names of the files of all pieces."""
    initial = {name: task.entry for name, task in plan_pieces(trials, features, CACHE, None, "cpu").items()}
    supervised = plan_pieces(trials, features, CACHE, initial, "cpu")
    entries = initial | {name: task.entry for name, task in supervised.items()}
    return {name: entry.path.name for name, entry in entries.items()}


def distinct(planned: dict[str, str], piece: str) -> int:
    return len({file for name, file in planned.items() if name.endswith(f"|{piece}")})


def test_trial_table_keeps_specifications(parameters):
    specifications = compared_specifications(*mpfm(parameters), parameters.comparison)
    found = trials_of(*specifications)
    assert len(found) == len(RUNS) * len(specifications)
    assert [trial.specification for trial in found[: len(specifications)]] == specifications
    assert found[0].run["train_normals"] == list(RUNS["train_normals"].iloc[0])


@pytest.mark.parametrize(
    ("name", "piece", "number"),
    [
        ("MPFM", "prototypes", 2),  # one per seed: they have other folds of the normals
        ("MPFM", "training", 12),
        ("DRA", "dra", 12),
        ("logistic regression", "logisticregression", 12),
        ("mixture of modes", "mixtureofmodes", 2),
        ("Mahalanobis", "mahalanobis", 1),
    ],
)
def test_runs_share_a_piece_only_where_nothing_differs(features, parameters, name, piece, number):
    assert distinct(plan(trials_of(named(parameters, name)), features), piece) == number


def test_detectors_share_the_pieces_they_have_in_common(features, parameters):
    both = [named(parameters, name) for name in ("Mahalanobis", "logistic regression + Mahalanobis")]
    assert distinct(plan(trials_of(*both), features), "mahalanobis") == 1
    ours = plan(trials_of(*setting_specifications(*mpfm(parameters))), features)
    assert distinct(ours, "prototypes") == 2
    assert distinct(ours, "training") == 12
    assert distinct(ours, "calibration") == 12 + 12 + 2  # trained, step 0, no anomaly known


def test_the_ablation_shares_what_it_does_not_change(features, parameters):
    names = [one.name for one in ablated_specifications(*mpfm(parameters), parameters.ablation)]
    planned = plan(trials_of(*ablated_specifications(*mpfm(parameters), parameters.ablation)), features)
    assert distinct(planned, "prototypes") == 4 * 2  # as configured, one prototype, raw, raw in two folds
    of_run = {
        piece: {name: planned.get(f"general-M10-seed0|{name}|{piece}") for name in names}
        for piece in ("training", "calibration")
    }
    assert len(set(of_run["calibration"].values())) == len(names)
    same = {name for name in names if of_run["training"][name] == of_run["training"]["MPFM"]}
    without = {name for name in names if name.startswith("without M_")}
    assert same == {"MPFM", "MPFM, step 0", "fusion printed"} | without and len(without) == 6
    printed = {name for name in names if name.endswith("printed") and name != "fusion printed"}
    assert len({of_run["training"][name] for name in printed}) == len(printed) == 9


def test_sensitivity_shares_prototypes(features, parameters):
    tried = parameters.sensitivity
    planned = plan(trials_of(*sensitivity_specifications(*mpfm(parameters), tried)), features)
    numbers = {*tried.n_prototypes, parameters.prototypes.n_prototypes}
    weights = {*tried.mim_weight} - {parameters.training.mim_weight}
    assert distinct(planned, "prototypes") == len(numbers) * 2  # λ uses those of the configured K
    assert distinct(planned, "training") == (len(numbers) + len(weights)) * 12


def test_each_backbone_has_its_own_pieces(features, parameters):
    specification = setting_specifications(*mpfm(parameters), ["resnet18", "dinov2_vits14"])[0]
    names = [piece.name for piece in specification.pieces]
    assert names == ["prototypes", "prototypes_2", "training", "training_2", "calibration"]
    planned = plan(trials_of(specification)[:1], features)
    assert len(set(planned.values())) == 5
    assert setting_specifications(*mpfm(parameters), ["resnet18"]) == setting_specifications(*mpfm(parameters))


def test_a_setting_finds_what_a_study_has_fitted(features, parameters):
    hard = RUNS[RUNS["setting"] == "hard"].assign(run=RUNS["run"].str.removeprefix("hard-"))
    ours = setting_specifications(*mpfm(parameters))
    study, setting = plan(trials_of(*ours), features), plan(trials_of(*ours, runs=hard), features)
    assert set(setting.values()) <= set(study.values())


@pytest.mark.parametrize("name", ["MPFM", "MPFM, no anomaly known", "DRA", "Mahalanobis"])
@pytest.mark.parametrize("role", ["train_normals", "known_anomalies", "test_normals", "test_anomalies"])
def test_another_image_under_the_same_name_is_another_piece_if_it_is_learned(features, parameters, name, role):
    trials = trials_of(named(parameters, name))[:1]
    index = features.index.copy()
    index.loc[index["sample_id"] == trials[0].run[role][0], "content_hash"] = "another"
    before, after = plan(trials, features), plan(trials, replace(features, index=index))
    changed = {file for file in before.values() if file not in after.values()}
    supervised = name in ("MPFM", "DRA")
    expected = {"train_normals": True, "known_anomalies": supervised}.get(role, False)
    assert bool(changed) == expected


def test_the_order_of_work_is_no_content(features, parameters, tmp_path):
    trials = trials_of(named(parameters, "MPFM"))
    assert plan(trials, fake_features(SAMPLES, tmp_path / "b", order=1)) == plan(trials, features)


def test_features_and_libraries_are_part_of_every_key(features, parameters, monkeypatch):
    trials = trials_of(*compared_specifications(*mpfm(parameters), parameters.comparison), runs=RUNS[:1])
    before = set(plan(trials, features).values())
    other = replace(features, store=replace(features.store, spec=replace(features.store.spec, image_size=96)))
    assert not before & set(plan(trials, other).values())
    monkeypatch.setattr("mpfm_kedro.experiments.trials.library_versions", lambda: {"torch": "99"})
    assert not before & set(plan(trials, features).values())


def test_a_new_version_fits_again_what_it_decides(features, parameters, monkeypatch):
    def planned() -> dict[str, str]:
        return plan(trials_of(named(parameters, "MPFM"), named(parameters, "DRA"))[:2], features)

    before = planned()
    monkeypatch.setitem(VERSIONS, "training", VERSIONS["training"] + 1)
    monkeypatch.setattr(Mahalanobis, "version", 2)
    after = planned()
    assert {name.split("|", 1)[1] for name in before if before[name] != after[name]} == {
        "MPFM|training",
        "MPFM|calibration",
    }


def count_known(data, earlier, parameters, seed, context) -> Artefact:
    return Artefact({}, {"known": data.n_known})


@pytest.mark.parametrize(("supervised", "known"), [(True, 10), (False, 0)])
def test_a_piece_that_runs_with_other_anomalies_share_sees_none_of_them(features, tmp_path, supervised, known):
    piece = Piece(name="only", fit="mpfm_kedro.detectors.pieces:", parameters={}, supervised=supervised, random=True)
    trials = trials_of(Specification(name="one", kind="ours", pieces=(piece,), load="mpfm_kedro.detectors.pieces:"))[:1]
    (task,) = plan_pieces(trials, features, Cache(tmp_path), {} if supervised else None, "cpu").values()
    fit_piece(replace(task, piece=piece.model_copy(update={"fit": f"{__name__}:count_known"})))
    assert task.entry.details["known"] == known


def test_learned_contents_are_equal_for_copies_of_one_image(features):
    index = features.index.copy()
    index.loc[index["sample_id"] == "good/001", "content_hash"] = "hash of good/000"
    copies = replace(features, index=index)
    assert learned_contents(["good/000"], copies) == learned_contents(["good/001"], copies)
    assert learned_contents(["good/000"], copies) != learned_contents(["good/002"], copies)


def test_runs_cover_both_settings_under_unique_names():
    assert RUNS["run"].is_unique
    assert RUNS.groupby("setting").size().to_dict() == {"general": 4, "hard": 8}


def test_one_class_has_the_general_setting_only():
    runs = make_study_runs(table(20, 8, {"dent": 25}), "all", [10], 2, 0)
    assert set(runs["setting"]) == {"general"}


def test_a_known_class_that_is_not_there_is_an_error():
    with pytest.raises(InputError, match="known_class"):
        make_study_runs(SAMPLES, "dnet", [10], 2, 0)


def test_budgets_name_the_steps_of_training(parameters):
    training = parameters.training.model_copy(update={"epochs": 7, "iterations_per_epoch": 300})
    comparison = parameters.comparison.model_copy(update={"steps": 1500})
    changed = parameters.model_copy(update={"training": training})
    budget = {one.name: one.budget for one in compared_specifications(*mpfm(changed), comparison)}
    assert budget["MPFM"] == budget["MPFM, step 0"] == "2,100 steps of 48"
    assert budget["DRA"] == "1,500 steps of 48"
    assert "1,500" not in budget["Mahalanobis"]
    assert budget["MPFM, no anomaly known"] == "closed form"


def test_the_simple_stack_has_one_gaussian_of_images_and_one_of_patches(parameters):
    ours, simple = (named(parameters, name) for name in ("MPFM", SIMPLE))
    assert (ours.kind, simple.kind) == ("ours", "reference")
    one = {"max_modes": 1, "n_prototypes": 1, "n_patch_prototypes": 1}
    expected = [piece.parameters for piece in named(parameters, "MPFM, step 0").pieces]
    assert [piece.parameters for piece in simple.pieces] == [expected[0] | one, *expected[1:]]


def test_what_is_printed_has_one_row_under_its_own_name(parameters):
    printed = ablated_specifications(*mpfm(parameters), parameters.ablation)[-1]
    assert printed.name == "MPFM as printed"
    _, training, calibration = (piece.parameters for piece in printed.pieces)
    forms = {training[name] for name in parameters.repairs.model_dump() if name != "fusion"}
    assert forms == {calibration["fusion"]} == {"printed"}
    repairs = parameters.repairs.model_validate(dict.fromkeys(parameters.repairs.model_dump(), "printed"))
    found = setting_specifications(parameters.prototypes, repairs, parameters.training)
    assert [one.name for one in found] == ["MPFM as printed"]


def test_repeated_values_of_the_sensitivity_are_tried_once(parameters):
    repeated = parameters.sensitivity.model_copy(update={"n_prototypes": [8, 8], "mim_weight": [0.1, 0.1]})
    assert [one.name for one in sensitivity_specifications(*mpfm(parameters), repeated)] == ["K=8", "λ=0.1"]


def test_epochs_of_a_running_task_are_those_of_its_checkpoint(parameters, features, tmp_path):
    training = parameters.training.model_copy(update={"epochs": 40})
    specifications = setting_specifications(parameters.prototypes, parameters.repairs, training)
    trials = trials_of(*specifications)[:1]
    initial = {name: t.entry for name, t in plan_pieces(trials, features, Cache(tmp_path), None, "cpu").items()}
    tasks = {task.piece.name: task for task in plan_pieces(trials, features, Cache(tmp_path), initial, "cpu").values()}
    assert _task_epochs(tasks["calibration"]) == (0, 0)
    assert _task_epochs(tasks["training"]) == (0, 40)
    for epoch in (3, 4):
        tasks["training"].checkpoint.save(Artefact({}, {"epoch": epoch}))
        assert _task_epochs(tasks["training"]) == (epoch, 40)
