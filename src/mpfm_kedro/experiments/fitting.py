"""The work of a worker: fit one piece, or score samples by one detector, and store the result."""

from __future__ import annotations

import time
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import numpy as np
import torch

from mpfm_kedro.detectors.base import Artefact, Context
from mpfm_kedro.experiments.cache import CheckpointFile
from mpfm_kedro.experiments.run_data import select, training_data
from mpfm_kedro.images.views import ORIGINAL
from mpfm_kedro.parallel import torch_device

if TYPE_CHECKING:
    from mpfm_kedro.experiments.trials import PieceTask, ScoreTask


def fit(task: PieceTask) -> None:
    """Fit one piece, from its checkpoint if there is one, and store it."""
    checkpoint = CheckpointFile(task.checkpoint)
    context = Context(torch_device(task.device), task.memory, checkpoint)
    earlier = {name: file.load() for name, file in task.earlier.items()}
    run = task.run
    if not task.piece.supervised:  # runs with other known anomalies share the piece
        run = run | {"known_anomalies": []}
    data = training_data(run, task.features)
    with torch.random.fork_rng(devices=[]):
        found = resolve_name(task.piece.fit)(data, earlier, task.piece.parameters, task.run["seed"], context)
    task.entry.save(Artefact(found.tensors, {**found.details, **task.details, "seconds": checkpoint.seconds}))
    task.checkpoint.delete()


def score(task: ScoreTask) -> None:
    """Score samples by one fitted detector and store the scores."""
    began = time.monotonic()
    pieces = {name: file.load() for name, file in task.pieces.items()}
    detector = resolve_name(task.load)(pieces, torch_device(task.device))
    scores = detector.score_samples(select(task.features, np.array(task.samples), [ORIGINAL]))
    found = {name: torch.from_numpy(np.asarray(value)) for name, value in vars(scores).items() if value is not None}
    found["score"] = found["score"].double()
    task.entry.save(Artefact(found, {"seconds": time.monotonic() - began}))
