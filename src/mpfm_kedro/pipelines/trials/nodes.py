"""Trials: every variant of every run, each computed once and kept.

A trial is one variant on one run: fit, score the test samples, keep the scores. The trials of all studies (comparison,
ablation, sensitivity) are one list of tasks with one progress bar, and are found again by what they were made from.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mpfm_kedro.backbones.views import ORIGINAL
from mpfm_kedro.compute import map_runs, processes_of
from mpfm_kedro.io.artefacts import ArtefactFile, RunCache
from mpfm_kedro.io.feature_store import Features
from mpfm_kedro.parameters import (
    ComputeParameters,
    PrototypeParameters,
    RepairParameters,
    TrainingParameters,
)
from mpfm_kedro.pipelines.evaluation.nodes import RUN
from mpfm_kedro.pipelines.runs.nodes import NoHardSettingError, make_general_runs, make_hard_runs, records
from mpfm_kedro.pipelines.scoring.nodes import PART_COLUMNS, TRAINED, UNTRAINED
from mpfm_kedro.pipelines.trials.variants import Variant
from mpfm_kedro.provenance import BASELINES, METHOD, code_digest

if TYPE_CHECKING:
    from mpfm_kedro.model.artefact import Artefact

logger = logging.getLogger(__name__)
REFERENCE_POSITIONS, REFERENCE_STEPS = 196, 1000  # of a map, and of training, where variants' seconds were measured
NO_MODE = -1


@dataclass(frozen=True)
class Trial:
    """One variant on one run."""

    variant: Variant
    run: dict[str, Any]
    scored: list[str]
    features: Features
    cache: RunCache
    entry: ArtefactFile
    prototypes: PrototypeParameters
    repairs: RepairParameters
    training: TrainingParameters
    device: str


def make_trial_runs(
    samples: pd.DataFrame, known_class: str, n_anomalies: Any, n_seeds: int, first_seed: int
) -> pd.DataFrame:
    """The runs of both settings; only general ones where there is no hard setting."""
    tables = [make_general_runs(samples, n_anomalies, n_seeds, first_seed)]
    try:
        tables.append(make_hard_runs(samples, known_class, n_anomalies, n_seeds, first_seed))
    except NoHardSettingError as error:
        logger.warning("General setting only: %s", error)
    runs = pd.concat(tables, ignore_index=True)
    return runs.assign(run=runs["setting"] + "-" + runs["run"])


def run_trials(
    runs: pd.DataFrame,
    features: Features,
    cache: RunCache,
    variants: list[Variant],
    prototypes: PrototypeParameters,
    repairs: RepairParameters,
    training: TrainingParameters,
    device: str,
    compute: ComputeParameters,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores of every variant, run and test sample, and the seconds each trial took; finished trials are taken up."""
    trials: list[Trial] = []
    all_runs = records(runs)
    everything = {run["category"]: _scorable(run["category"], all_runs) for run in all_runs}
    for run in all_runs:
        scored = {True: everything[run["category"]], False: _tested(run)}
        made_of = {shared: _content(run, scored[shared], features, shared) for shared in scored}
        for variant in variants:
            shared = _shared(variant)
            changed = {
                "prototypes": variant.changed("prototypes", prototypes),
                "repairs": variant.changed("repairs", repairs),
                "training": variant.changed("training", training),
            }
            entry = cache.entry(made_of[shared] | _key(variant, changed), "trial")
            trials.append(Trial(variant, run, scored[shared], features, cache, entry, device=device, **changed))
    left = list({trial.entry.path: trial for trial in trials if not trial.entry.exists()}.values())
    if left:
        _tell_time(left, len(trials), compute)
        map_runs(run_trial, left, "Trials", compute, device)
    scores, costs = [], []
    for trial in trials:
        artefact = trial.entry.load()
        scores.append(_scores(trial, artefact))
        described = {"method": trial.variant.name, "run": trial.run["run"], "setting": trial.run["setting"]}
        costs.append(described | {"seconds": artefact.details["seconds"]})
    return pd.concat(scores, ignore_index=True), pd.DataFrame(costs)


def tabulate_methods(variants: list[Variant], training: TrainingParameters) -> pd.DataFrame:
    """Kind, budget and peculiarity of every variant."""
    rows = []
    for variant in variants:
        steps = variant.changed("training", training)
        own = f"{{steps}} steps of {steps.normals_per_batch + steps.anomalies_per_batch}"
        budget = (variant.budget or own).format(steps=f"{_steps(steps):,}")
        rows.append({"method": variant.name, "kind": variant.kind, "budget": budget, "note": variant.note})
    return pd.DataFrame(rows)


def run_trial(trial: Trial) -> None:
    """Fit and score one trial, and keep the scores."""
    import torch

    from mpfm_kedro.model.artefact import Artefact

    compute = _mpfm if trial.variant.method in (TRAINED, UNTRAINED) else _baseline
    tensors, seconds = compute(trial)
    details = {"variant": trial.variant.name, "scored": trial.scored, "seconds": seconds}
    trial.entry.save(Artefact({name: torch.from_numpy(values) for name, values in tensors.items()}, details))


def _mpfm(trial: Trial) -> tuple[dict[str, np.ndarray], float]:
    """Scores by MPFM and seconds from the first step on, whoever took it.

    A model that the settings' own runs have trained is taken; one that is trained here is not kept.
    """
    from mpfm_kedro.compute import torch_device
    from mpfm_kedro.model.artefact import unpack, unpack_calibration
    from mpfm_kedro.pipelines.prototypes.nodes import initialise_run, plan_initialisation
    from mpfm_kedro.pipelines.training.nodes import plan_training, train
    from mpfm_kedro.pipelines.training.run_data import select
    from mpfm_kedro.pipelines.training.steps import score_rows

    groups = (trial.prototypes, trial.repairs, trial.training)
    initialisation = plan_initialisation(trial.run, trial.features, trial.cache, *groups)
    if not initialisation.entry.exists():
        initialise_run(initialisation)
    artefact = initialisation.entry.load()
    seconds = artefact.details["seconds"]
    if trial.variant.method == TRAINED:
        rest = (trial.repairs, trial.training, trial.device)
        plan = plan_training(trial.run, trial.features, trial.cache, initialisation.entry, *rest)
        artefact = plan.entry.load() if plan.entry.exists() else train(plan)
        plan.checkpoint.delete()
        seconds += artefact.details["seconds"]
    began = time.monotonic()
    model = unpack(artefact).to(torch_device(trial.device))
    parts, mode = score_rows(model, select(trial.features, np.array(trial.scored), [ORIGINAL]))
    score = unpack_calibration(artefact).fuse(parts, mode)
    return {"score": score, "parts": parts, "mode": mode}, seconds + time.monotonic() - began


def _baseline(trial: Trial) -> tuple[dict[str, np.ndarray], float]:
    """Scores by a baseline, and the seconds of fitting and scoring."""
    from mpfm_kedro.baselines import baseline
    from mpfm_kedro.compute import torch_device
    from mpfm_kedro.pipelines.training.run_data import all_training_data, select

    began = time.monotonic()
    method = baseline(trial.variant.method)(_steps(trial.training))
    method.fit(all_training_data(trial.run, trial.features), trial.run["seed"], torch_device(trial.device))
    scores = method.score(select(trial.features, np.array(trial.scored), [ORIGINAL]))
    return {"score": np.asarray(scores, dtype=np.float64)}, time.monotonic() - began


def _content(run: dict[str, Any], scored: list[str], features: Features, shared: bool) -> dict[str, Any]:
    """The images that a trial learns from and scores; shared trials know no anomaly."""
    from mpfm_kedro.pipelines.training.run_data import content_key, contents

    return content_key(run, features, with_anomalies=not shared) | {"scored": contents(scored, features, [ORIGINAL])}


def _key(variant: Variant, changed: dict[str, Any]) -> dict[str, Any]:
    """What a trial is made by: method, code and parameters."""
    from mpfm_kedro.baselines import baseline

    key: dict[str, Any] = {"method": variant.method}
    if variant.method in (TRAINED, UNTRAINED):
        return key | {"code": code_digest(METHOD)} | {name: group.model_dump() for name, group in changed.items()}
    key |= {"code": code_digest(BASELINES), "steps": _steps(changed["training"])}
    return key if baseline(variant.method).random else key | {"seed": None}


def _steps(training: TrainingParameters) -> int:
    """Training steps of MPFM, and so of every rival."""
    return training.epochs * training.iterations_per_epoch


def _shared(variant: Variant) -> bool:
    """Whether all runs with the same normals share the trial."""
    from mpfm_kedro.baselines import baseline

    if variant.method == TRAINED:
        return False
    return variant.method == UNTRAINED or not baseline(variant.method).supervised


def _scorable(category: str, runs: list[dict[str, Any]]) -> list[str]:
    """Test normals and all anomalies of a category, whichever of them are known."""
    own = [run for run in runs if run["category"] == category]
    anomalies = {sample for run in own for sample in [*run["test_anomalies"], *run["known_anomalies"]]}
    return [*own[0]["test_normals"], *sorted(anomalies)]


def _tell_time(left: list[Trial], total: int, compute: ComputeParameters) -> None:
    """Say how long the trials that are left will take, before the first one."""
    positions = int(np.prod(left[0].features.store.spec.map_shape[1:]))
    seconds = sum(trial.variant.seconds * _steps(trial.training) / REFERENCE_STEPS for trial in left)
    processes = min(processes_of(compute, left[0].device), len(left))
    minutes = max(1, round(seconds * positions / REFERENCE_POSITIONS / processes / 60))
    logger.info("Trials: %d of %d are left, about %d minutes, %d at once", len(left), total, minutes, processes)


def _tested(run: dict[str, Any]) -> list[str]:
    """The test samples of a run, normals first."""
    return [*run["test_normals"], *run["test_anomalies"]]


def _scores(trial: Trial, artefact: Artefact) -> pd.DataFrame:
    """The scores of the run's own test samples, among those that the trial scored."""
    row = {sample: i for i, sample in enumerate(artefact.details["scored"])}
    tested = _tested(trial.run)
    chosen = [row[sample] for sample in tested]
    table = pd.DataFrame({name: trial.run[name] for name in RUN} | {"method": trial.variant.name, "sample": tested})
    table["label"] = np.repeat([0, 1], [len(trial.run["test_normals"]), len(trial.run["test_anomalies"])])
    table["score"] = artefact.tensors["score"].numpy()[chosen]
    parts = artefact.tensors["parts"].numpy()[chosen] if "parts" in artefact.tensors else np.nan
    table[PART_COLUMNS] = parts
    table["mode"] = artefact.tensors["mode"].numpy()[chosen] if "mode" in artefact.tensors else NO_MODE
    return table
