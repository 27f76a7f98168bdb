"""Fits are found again by all that decides their numbers, and by nothing else; fitting twice gives equal bytes."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pandas as pd
import pytest
import torch

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.detectors.base import Artefact
from mpfm_kedro.detectors.mpfm import stages
from mpfm_kedro.detectors.mpfm.specification import STAGES
from mpfm_kedro.parameters import Parameters
from mpfm_kedro.pipelines.mpfm import initialise_prototypes, train_mpfm
from mpfm_kedro.protocol.fits import Plan
from mpfm_kedro.protocol.memory import Checkpoint, Memory
from mpfm_kedro.protocol.methods import Method, ablated_methods, rows_of_mpfm, to_json
from mpfm_kedro.protocol.runs import make_hard_runs, make_study_runs
from mpfm_kedro.protocol.trials import Trial, Trials
from protocol.small_tables import (
    COMPUTE,
    MEMORY,
    fake_features,
    marked_features,
    plan_mpfm,
    protocol,
    sample_table,
    small_parameters,
)

SAMPLES = sample_table({"dent": 12, "hole": 11}, 20, 8)
RUNS = make_study_runs(SAMPLES, dict.fromkeys(("general", "hard"), protocol([10, 1], 2)))
TRAINED, STEP_0, UNTRAINED = rows_of_mpfm()


@pytest.fixture(scope="module")
def features(tmp_path_factory) -> Features:
    return fake_features(SAMPLES, tmp_path_factory.mktemp("features"))


def with_methods(*methods: Method, runs: pd.DataFrame = RUNS) -> pd.DataFrame:
    return runs.assign(methods=to_json(methods))


ONE_RUN = with_methods(TRAINED, runs=RUNS[:1])


def keys(trials: list[Trial], stage: str) -> set[str]:
    return {entry.key for trial in trials for entry in trial.fits.values() if entry.stage == stage}


def counts(trials: list[Trial]) -> list[int]:
    """How many distinct fits each stage has."""
    return [len(keys(trials, stage)) for stage in STAGES]


def test_trials_share_a_fit_where_nothing_differs(features, parameters):
    """There are twelve runs, of two seeds, which have other folds of the normals."""
    planned = {method.name: plan_mpfm(with_methods(method), features, parameters) for method in rows_of_mpfm()}
    assert counts(planned["MPFM"]) == [2, 12, 12]
    assert counts(planned["MPFM, no anomaly known"]) == [2, 0, 2]
    together = plan_mpfm(with_methods(*rows_of_mpfm()), features, parameters)
    assert counts(together) == [2, 12, 12 + 12 + 2]
    assert {key for trials in planned.values() for key in keys(trials, "prototypes")} == keys(together, "prototypes")


def test_the_ablation_shares_what_it_does_not_change(features, parameters):
    methods = ablated_methods(parameters.ablation)
    planned = plan_mpfm(with_methods(*methods, runs=RUNS[:1]), features, parameters)
    assert counts(planned)[0] == 4  # as configured, one prototype, raw, raw in two folds
    assert counts(planned)[2] == len(methods)
    training = {trial.method.name: trial.fits["training"].key for trial in planned if "training" in trial.fits}
    same = {name for name, key in training.items() if key == training["MPFM"]}
    without = {name for name in training if name.startswith("without M_")}
    assert same == {"MPFM", "MPFM, step 0", "fusion printed"} | without and len(without) == 6
    assert len({key for name, key in training.items() if name.endswith("printed")} - {training["MPFM"]}) == 9


def test_a_setting_and_new_names_find_what_a_study_has_fitted(features, parameters):
    hard = make_hard_runs(SAMPLES, protocol([10, 1], 2)).assign(run=[f"renamed {i}" for i in range(8)])
    study = plan_mpfm(with_methods(*rows_of_mpfm()), features, parameters)
    renamed = [method.model_copy(update={"name": f"our {method.name}"}) for method in rows_of_mpfm()]
    setting = plan_mpfm(with_methods(*renamed, runs=hard), features, parameters)
    for stage in STAGES:
        assert keys(setting, stage) and keys(setting, stage) <= keys(study, stage)


def test_each_backbone_has_its_own_fits(features, parameters, tmp_path):
    other = replace(features.store, spec=replace(features.store.spec, backbone="dinov2_vits14"))
    both = replace(features, others=(replace(features, store=other),))
    (trial,) = plan_mpfm(ONE_RUN, both, parameters)
    assert list(trial.fits) == ["prototypes", "prototypes_2", "training", "training_2", "calibration"]
    assert len(set(trial.fits.values())) == 5
    assert not set(trial.fits.values()) & set(plan_mpfm(with_methods(TRAINED), features, parameters)[0].fits.values())


@pytest.mark.parametrize("role", ["train_normals", "known_anomalies", "test_normals", "test_anomalies"])
def test_another_image_under_the_same_name_is_another_fit_if_it_is_learned(features, parameters, role):
    index = features.index.copy()
    index.loc[index["sample_id"] == RUNS[role].iloc[0][0], "content_hash"] = "another"
    runs = with_methods(TRAINED, UNTRAINED, runs=RUNS[:1])
    before, after = (plan_mpfm(runs, own, parameters) for own in (features, replace(features, index=index)))
    trained, untrained = (one.fits != other.fits for one, other in zip(before, after, strict=True))
    assert (trained, untrained) == (role in ("train_normals", "known_anomalies"), role == "train_normals")
    assert (before[0].fits["prototypes"] != after[0].fits["prototypes"]) == (role == "train_normals")


def test_items_of_several_images_are_another_fit_and_their_names_are_not(features, parameters):
    runs = with_methods(TRAINED, runs=RUNS[:1].assign(by_item=True))
    first, second = RUNS["train_normals"].iloc[0][:2]
    known = RUNS["known_anomalies"].iloc[0][0]
    renamed = features.index.assign(item="another " + features.index["item"])
    two_photos, both_labels = (
        renamed.assign(item=renamed["item"].mask(renamed["sample_id"] == other, f"another {first}"))
        for other in (second, known)
    )
    before, *others = (
        plan_mpfm(runs, replace(features, index=index), parameters)[0].fits
        for index in (features.index, renamed, two_photos, both_labels)
    )
    differs = [{stage: fits[stage] != before[stage] for stage in ("prototypes", "training")} for fits in others]
    assert [list(different.values()) for different in differs] == [[False, False], [True, True], [False, True]]


def changed(parameters: Parameters, group: str, **values: object) -> Parameters:
    return parameters.model_copy(update={group: getattr(parameters, group).model_copy(update=values)})


@pytest.mark.parametrize(
    ("group", "values", "first"),
    [
        ("prototypes", {"n_prototypes": 3}, 0),
        ("repairs", {"coupling": "printed", "transport_start": "printed"}, 0),
        ("training", {"epochs": 3}, 1),
        ("repairs", {"push": "printed"}, 1),
        ("training", {"scores": ["g", "a"]}, 2),
        ("repairs", {"fusion": "printed"}, 2),
    ],
)
def test_a_parameter_changes_the_stage_that_reads_it_and_all_after(features, parameters, group, values, first):
    both = parameters, changed(parameters, group, **values)
    (before,), (after,) = (plan_mpfm(ONE_RUN, features, chosen) for chosen in both)
    assert [before.fits[stage] != after.fits[stage] for stage in STAGES] == [number >= first for number in range(3)]


def test_features_libraries_and_seed_are_part_of_every_key(features, parameters, monkeypatch):
    before = set(plan_mpfm(ONE_RUN, features, parameters)[0].fits.values())
    assert not before & set(plan_mpfm(ONE_RUN.assign(seed=7), features, parameters)[0].fits.values())
    other = replace(features, store=replace(features.store, spec=replace(features.store.spec, image_size=96)))
    assert not before & set(plan_mpfm(ONE_RUN, other, parameters)[0].fits.values())
    monkeypatch.setattr("mpfm_kedro.protocol.fits.library_versions", lambda: {"torch": "99"})
    assert not before & set(plan_mpfm(ONE_RUN, features, parameters)[0].fits.values())


def test_a_new_version_of_a_stage_fits_it_and_all_after_again(features, parameters, monkeypatch):
    (before,) = plan_mpfm(ONE_RUN, features, parameters)
    monkeypatch.setitem(STAGES, "training", STAGES["training"] + 1)
    (after,) = plan_mpfm(ONE_RUN, features, parameters)
    assert {stage for stage in STAGES if before.fits[stage] != after.fits[stage]} == {"training", "calibration"}


def first_stage(features: Features, parameters: Parameters) -> Plan:
    return initialise_prototypes(ONE_RUN, features, parameters.prototypes, parameters.repairs, COMPUTE)


def second_stage(features: Features, parameters: Parameters) -> Plan:
    trials = Trials(first_stage(features, parameters).tabulate(MEMORY), MEMORY)
    return train_mpfm(trials, features, parameters.training, parameters.repairs, COMPUTE)


def test_a_stage_that_runs_with_other_anomalies_share_sees_none_of_them(features, parameters, tmp_path, monkeypatch):
    def count_known(data, upstream, parameters, seed, context) -> Artefact:
        return Artefact({"known": torch.tensor(data.n_known)})

    monkeypatch.setattr(stages, "fit_prototypes", count_known)
    (task,) = first_stage(features, parameters).tasks
    replace(task, memory=Memory(tmp_path)).work()
    assert Memory(tmp_path).load(task.entry).tensors["known"] == 0
    assert RUNS["n_anomalies"].iloc[0] == 10


def test_a_run_without_known_anomalies_has_the_method_that_needs_none(features, parameters):
    runs = make_study_runs(SAMPLES, {"general": protocol(1, 1)})
    runs["known_anomalies"] = [[]]
    planned = plan_mpfm(with_methods(*rows_of_mpfm(), runs=runs), features, parameters)
    assert [(trial.method.name, list(trial.fits)) for trial in planned] == [
        (UNTRAINED.name, ["prototypes", "calibration"])
    ]


def md5s(memory: Memory) -> dict[str, str]:
    """Of all fits, without the log."""
    files = [file for file in memory.root.rglob("*.safetensors") if file.parent.name in STAGES]
    return {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, parameters) -> tuple[pd.DataFrame, Features, Parameters, Memory]:
    """MPFM with small numbers, really fitted in one run."""
    folder, own = tmp_path_factory.mktemp("fitted"), small_parameters(parameters)
    features = marked_features(SAMPLES, folder / "store")
    runs = with_methods(*rows_of_mpfm(), runs=make_study_runs(SAMPLES, {"general": protocol(3)}))
    memory = Memory(folder / "memory")
    plan_mpfm(runs, features, own, memory)
    return runs, features, own, memory


def test_fitting_again_in_another_process_gives_equal_bytes(fitted, in_this_process, tmp_path):
    runs, features, own, memory = fitted
    plan_mpfm(runs, features, own, Memory(tmp_path))
    assert md5s(Memory(tmp_path)) == md5s(memory)
    assert len(md5s(memory)) == 1 + 1 + 3


def test_what_is_there_is_not_fitted_again_and_a_damaged_fit_is(fitted, in_this_process, caplog):
    runs, features, own, memory = fitted
    before = md5s(memory)
    plan_mpfm(runs, features, own, memory)
    assert in_this_process == []
    (trained,) = (memory.root / "training").iterdir()
    trained.write_bytes(trained.read_bytes()[:99])
    plan_mpfm(runs, features, own, memory)
    assert [str(task) for task in in_this_process] == ["training of synthetic, general-M3-seed0"]
    assert md5s(memory) == before
    assert f"{trained} is missing or damaged" in caplog.text


def test_an_interrupted_fit_resumes_from_its_checkpoint_with_equal_bytes(
    fitted, in_this_process, tmp_path, monkeypatch
):
    runs, features, own, _ = fitted
    own = changed(own, "training", epochs=4)
    whole, interrupted = Memory(tmp_path / "whole"), Memory(tmp_path / "interrupted")
    plan_mpfm(runs, features, own, whole)
    epochs, save = [], Checkpoint.save

    def save_and_die(checkpoint: Checkpoint, state: Artefact) -> None:
        save(checkpoint, state)
        epochs.append(checkpoint.epoch)
        if len(epochs) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        plan_mpfm(runs, features, own, interrupted)
    assert len(list((interrupted.root / "checkpoints").iterdir())) == 1
    plan_mpfm(runs, features, own, interrupted)
    assert epochs == [1, 2, 3, 4]
    assert md5s(interrupted) == md5s(whole)
    assert not list((interrupted.root / "checkpoints").iterdir())


def test_epochs_of_a_running_fit_are_those_of_its_checkpoint(features, parameters, tmp_path):
    memory = Memory(tmp_path)
    (first,), (task,) = (
        [replace(task, memory=memory) for task in stage(features, parameters).tasks]
        for stage in (first_stage, second_stage)
    )
    assert first.epochs() == (0, 0)
    assert task.epochs() == (0, parameters.training.epochs)
    for epoch in (3, 4):
        memory.checkpoint(task.entry).save(Artefact({}, {"epoch": epoch}))
        assert task.epochs() == (epoch, parameters.training.epochs)


def test_the_progress_of_a_plan_counts_epochs(features, parameters, tmp_path, monkeypatch):
    counted = []

    def count(work, tasks, label, compute, total, need, epochs) -> None:
        counted.extend(epochs(task) for task in tasks)

    monkeypatch.setattr("mpfm_kedro.protocol.fits.map_tasks", count)
    second_stage(features, parameters).run(Memory(tmp_path))
    assert counted == [(0, parameters.training.epochs)]
