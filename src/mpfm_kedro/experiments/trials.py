"""Trials: every run with every specification, fitted in pieces and scored, each piece once.

Pieces, scores and checkpoints are cached under a key of all that decides their numbers: the images learned from, the
features, the parameters of the piece, its version, the libraries, and the keys of the earlier pieces. Which
pieces are missing is known before any work begins, so no two workers compute the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache as remember
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.detectors.pieces import Piece, Specification
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.cache import ArtefactFile, Cache, cache_key
from mpfm_kedro.experiments.columns import COSTS, PART_COLUMNS, RUN, SCORES
from mpfm_kedro.experiments.contents import contents, describe_data
from mpfm_kedro.experiments.protocol import records
from mpfm_kedro.files import AGAIN, first_line
from mpfm_kedro.images.views import ORIGINAL
from mpfm_kedro.parallel import concurrent_tasks, map_tasks, memory_limit
from mpfm_kedro.parameters import ComparisonParameters, ComputeParameters
from mpfm_kedro.provenance import code_revision, library_versions

DATA_VERSION = 1  # of which rows of features a fit learns from, and with which seed (run_data.py, fitting.py)
DETECTORS = "mpfm_kedro.detectors."
TRIAL_COLUMNS = [*RUN, "method", "kind", "budget", "note", "specification"]
PROCESS_BYTES, POOLED_COPIES, SQUARE_COPIES = 800_000_000, 20, 3  # of a task's memory, as measured on ELPV
NO_MODE = -1
OURS = "ours"


@dataclass(frozen=True)
class Trial:
    """One specification on one run."""

    run: dict[str, Any]
    specification: Specification

    def piece_name(self, piece: Piece) -> str:
        """The name of one of its pieces in a folder of models."""
        return f"{self.run['run']}|{self.specification.name}|{piece.name}"


@dataclass(frozen=True)
class PieceTask:
    """One piece to fit: from which data and earlier pieces, and where it is stored."""

    piece: Piece
    run: dict[str, Any]
    features: Features
    earlier: dict[str, ArtefactFile]
    entry: ArtefactFile
    checkpoint: ArtefactFile
    details: dict[str, Any]
    device: str
    memory: int

    def __str__(self) -> str:
        return f"{self.piece.name} of {self.run['dataset']}, {self.run['run']}"


@dataclass(frozen=True)
class ScoreTask:
    """Samples to score by one fitted detector, and where the scores are stored."""

    load: str
    pieces: dict[str, ArtefactFile]
    features: Features
    samples: list[str]
    entry: ArtefactFile
    device: str

    def __str__(self) -> str:
        return f"scores of {len(self.samples)} samples by {self.load}"


def plan_trials(runs: pd.DataFrame, specifications: list[Specification]) -> pd.DataFrame:
    """The trial table: one row per run and specification; a run without known anomalies has those that need none."""
    rows = []
    for run in records(runs):
        for one in specifications:
            if not run["known_anomalies"] and any(piece.supervised for piece in one.pieces):
                continue
            described = {"method": one.name, "kind": one.kind, "budget": one.budget, "note": one.note}
            rows.append({name: run[name] for name in RUN} | described | {"specification": one.model_dump_json()})
    return pd.DataFrame(rows, columns=TRIAL_COLUMNS)


def plan_compared_trials(
    runs: pd.DataFrame, specifications: list[Specification], comparison: ComparisonParameters
) -> pd.DataFrame:
    """The trial table of a comparison, each setting with its own methods."""
    trials = plan_trials(runs, specifications)
    methods = {setting: {*(comparison.of(setting, 1).methods or [])} for setting in comparison.settings}
    pairs = zip(trials["setting"], trials["method"], strict=True)
    return trials[[bool({method, "all"} & methods[setting]) for setting, method in pairs]].reset_index(drop=True)


def read_trials(trials: pd.DataFrame, runs: pd.DataFrame) -> list[Trial]:
    """The trials of a table, with the samples of their runs."""
    run_of = {run["run"]: run for run in records(runs)}
    specify = remember(_read_specification)
    pairs = zip(trials["run"], trials["specification"], strict=True)
    return [Trial(run_of[run], specify(specification)) for run, specification in pairs if run in run_of]


def _read_specification(content: str) -> Specification:
    """The specification in a table; functions that are not of a detector are not called, whatever the table says."""
    try:
        found = Specification.model_validate_json(content)
    except ValueError as error:
        raise InputError(f"The table of trials has no valid specification ({first_line(error)}); {AGAIN}") from error
    for name in [found.load, *(piece.fit for piece in found.pieces)]:
        if not name.startswith(DETECTORS):
            raise InputError(f"The table of trials names the function {name!r}, which is not in {DETECTORS}; {AGAIN}")
    return found


def fit_pieces(
    trials: list[Trial],
    features: Features,
    cache: Cache,
    initial: dict[str, ArtefactFile] | None,
    label: str,
    device: str,
    compute: ComputeParameters,
) -> dict[str, ArtefactFile]:
    """Fit the pieces of all trials that know no anomaly or, given these as ``initial``, the supervised ones.

    Pieces are fitted step by step: first all that need no other, then all that need one of them, and so on.
    """
    planned = plan_pieces(trials, features, cache, initial, device)
    distinct = {task.entry.path: task for task in planned.values()}.values()
    for step in sorted({len(task.earlier) for task in distinct}):
        _fit_missing([task for task in distinct if len(task.earlier) == step], label, compute)
    return {name: task.entry for name, task in planned.items()}


def plan_pieces(
    trials: list[Trial], features: Features, cache: Cache, initial: dict[str, ArtefactFile] | None, device: str
) -> dict[str, PieceTask]:
    """The tasks of ``fit_pieces`` by name; trials that share a piece have equal tasks."""
    describe = remember(partial(describe_data, features=features))
    entries = dict(initial or {})
    planned = {}
    for trial in trials:
        for piece in trial.specification.pieces:
            if piece.supervised == (initial is not None):
                name = trial.piece_name(piece)
                planned[name] = _piece_task(trial, piece, features, cache, entries, device, describe)
                entries[name] = planned[name].entry
    return planned


def _fit_missing(tasks: list[PieceTask], label: str, compute: ComputeParameters) -> None:
    """Fit what is not cached."""
    remaining = [task for task in tasks if not task.entry.is_cached()]
    if not remaining:
        return
    names = {task.piece.name.replace("_", " ") for task in tasks}
    label = f"{label} ({names.pop()})" if len(names) == 1 else label
    device, need = remaining[0].device, max(_task_bytes(task) for task in remaining)
    at_once = concurrent_tasks(compute, device, len(remaining), need)
    share = memory_limit(compute) // at_once if compute.dask_scheduler is None else need
    sharing = [replace(task, memory=share) for task in remaining]
    map_tasks(fit_piece, sharing, label, compute, device, len(tasks), need, _task_epochs)


def fit_piece(task: PieceTask) -> None:
    """Fit one piece and store it; the work of a worker."""
    from mpfm_kedro.experiments.fitting import fit  # with torch, which is slow to import

    fit(task)


def score_trials(
    trials: list[Trial],
    features: Features,
    models: dict[str, ArtefactFile],
    cache: Cache,
    device: str,
    compute: ComputeParameters,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores of every trial's test samples, and the seconds each trial took.

    Trials that share all pieces are scored together, once for the union of their test samples.
    """
    groups = sharing_pieces(trials, models)
    digest = remember(ArtefactFile.digest)
    tasks = [_score_task(own, features, models, cache, device, digest) for own in groups]
    remaining = [task for task in tasks if not task.entry.is_cached()]
    if remaining:
        most = max(len(task.samples) for task in remaining)
        need = PROCESS_BYTES + POOLED_COPIES * most * 4 * sum(spec.pooled_size for spec in features.specs)
        map_tasks(score_samples, remaining, "Scoring", compute, device, len(tasks), need)
    scores, costs = [], []
    for own, task in zip(groups, tasks, strict=True):
        artefact = task.entry.load()
        row = {sample: i for i, sample in enumerate(task.samples)}
        fit_seconds = sum(file.details["seconds"] for file in task.pieces.values())
        for trial in own:
            chosen = [row[sample] for sample in tested(trial.run)]
            scores.append(_score_table(trial, chosen, {k: v.numpy() for k, v in artefact.tensors.items()}))
            seconds = fit_seconds + artefact.details["seconds"] * len(chosen) / len(task.samples)
            described = {"setting": trial.run["setting"], "run": trial.run["run"], "method": trial.specification.name}
            costs.append(described | {"seconds": round(seconds, 2)})
    order = {(trial.run["run"], trial.specification.name): i for i, trial in enumerate(trials)}
    table = pd.concat(scores, ignore_index=True)
    place = pd.Series(zip(table["run"], table["method"], strict=True)).map(order)
    return table.iloc[place.argsort(kind="stable")].reset_index(drop=True)[SCORES], pd.DataFrame(costs)[COSTS]


def score_samples(task: ScoreTask) -> None:
    """Score samples by one fitted detector and store the scores; the work of a worker."""
    from mpfm_kedro.experiments.fitting import score  # with torch, which is slow to import

    score(task)


def sharing_pieces(trials: list[Trial], models: dict[str, ArtefactFile]) -> list[list[Trial]]:
    """The trials in groups that share all pieces."""
    groups: dict[tuple[str, ...], list[Trial]] = {}
    for trial in trials:
        groups.setdefault(tuple(str(file.path) for file in pieces_of(trial, models).values()), []).append(trial)
    return list(groups.values())


def tested(run: dict[str, Any]) -> list[str]:
    """The test samples of a run, normals first."""
    return [*run["test_normals"], *run["test_anomalies"]]


def _piece_task(
    trial: Trial,
    piece: Piece,
    features: Features,
    cache: Cache,
    fitted: dict[str, ArtefactFile],
    device: str,
    describe: Callable[[tuple[str, ...], bool], dict[str, Any]],
) -> PieceTask:
    """The task of one piece of a trial; the earlier ones are planned or fitted already."""
    run, pieces = trial.run, trial.specification.pieces
    earlier = {one.name: fitted[trial.piece_name(one)] for one in pieces[: pieces.index(piece)]}
    learned = (*run["train_normals"], *(run["known_anomalies"] if piece.supervised else ()))
    data = describe(learned, trial.specification.kind != OURS)  # MPFM reads no pseudo-anomalies
    key = cache_key(
        piece=piece.name,
        parameters=piece.parameters,
        seed=run["seed"] if piece.random else None,
        features=features.spec_digest,
        data=data["data"],
        versions=[piece.version, DATA_VERSION],
        libraries=library_versions(),
        earlier=[file.path.stem for file in earlier.values()],
    )
    details = {
        "piece": piece.name,
        "key": key,
        "parameters": piece.parameters,
        "seed": run["seed"],
        "features": features.spec_digest,
        "weights": "+".join(spec.weights_digest for spec in features.specs),
        **data,
        "revision": code_revision(),
        "libraries": library_versions(),
    }
    entry, checkpoint = cache.entry(piece.name, key), cache.entry("checkpoint", key)
    return PieceTask(piece, run, features, earlier, entry, checkpoint, details, device, memory=0)


def pieces_of(trial: Trial, models: dict[str, ArtefactFile]) -> dict[str, ArtefactFile]:
    """The fitted pieces of a trial by name."""
    return {piece.name: models[trial.piece_name(piece)] for piece in trial.specification.pieces}


def _score_task(
    trials: list[Trial],
    features: Features,
    models: dict[str, ArtefactFile],
    cache: Cache,
    device: str,
    digest: Callable[[ArtefactFile], str],
) -> ScoreTask:
    specification, pieces = trials[0].specification, pieces_of(trials[0], models)
    samples = list(dict.fromkeys(sample for trial in trials for sample in tested(trial.run)))
    key = cache_key(
        pieces=[digest(file) for file in pieces.values()],
        versions=[specification.load, specification.version, DATA_VERSION],
        libraries=library_versions(),
        features=features.spec_digest,
        samples=samples,
        contents=contents(samples, features, [ORIGINAL]),
    )
    return ScoreTask(specification.load, pieces, features, samples, cache.entry("scores", key), device)


def _score_table(trial: Trial, chosen: list[int], values: dict[str, np.ndarray]) -> pd.DataFrame:
    """The scores of a run's own test samples, among those that were scored."""
    run = trial.run
    table = pd.DataFrame(
        {name: run[name] for name in RUN} | {"method": trial.specification.name, "sample": tested(run)}
    )
    table["label"] = np.repeat([0, 1], [len(run["test_normals"]), len(run["test_anomalies"])])
    table["score"] = values["score"][chosen]
    table[PART_COLUMNS] = values["parts"][chosen] if "parts" in values else np.nan
    table["mode"] = values["mode"][chosen] if "mode" in values else NO_MODE
    return table


def _task_bytes(task: PieceTask) -> int:
    """Memory that fitting a piece takes, about: the process, copies of pooled statistics, square matrices."""
    sizes = [spec.pooled_size for spec in task.features.specs]
    rows = task.features.index["sample_id"].isin({*task.run["train_normals"], *task.run["known_anomalies"]}).sum()
    return PROCESS_BYTES + POOLED_COPIES * int(rows) * 4 * sum(sizes) + SQUARE_COPIES * 8 * max(sizes) ** 2


def _task_epochs(task: PieceTask) -> tuple[int, int]:
    """How many epochs of a piece are done, by its checkpoint, and how many there will be; (0, 0) without epochs."""
    planned = int(task.piece.parameters.get("epochs", 0))
    if not planned or not task.checkpoint.exists():
        return 0, planned
    try:
        done = ArtefactFile(task.checkpoint.path).details["epoch"]  # read anew
    except (InputError, KeyError):  # finished and deleted just now
        return planned, planned
    return int(done), planned
