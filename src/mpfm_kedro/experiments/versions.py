"""Versions: every result that `kedro run` kept, and whether its models may be used with the present data."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.errors import InputError
from mpfm_kedro.experiments.cache import ArtefactFile
from mpfm_kedro.experiments.columns import TRAINED
from mpfm_kedro.experiments.contents import learned_contents
from mpfm_kedro.experiments.protocol import PRODUCTION, records
from mpfm_kedro.experiments.trials import read_trials, tested
from mpfm_kedro.files import first_line, is_intact
from mpfm_kedro.provenance import code_revision

logger = logging.getLogger(__name__)
NUMBERS = ["n_anomalies", "n_seeds", "auc_mean", "auc_std"]
COLUMNS = ["dataset", "setting", "version", "method", *NUMBERS, "revision", "data", "weights"]
SUMMARY = ["category", "known_class", "method", *NUMBERS]
DIGITS = 12
ANOTHER = "use another one, see kedro versions list"
VERSIONED = ("models", "model")  # what has a version of every result: of a setting, of production


def list_versions(root: Path) -> pd.DataFrame:
    """AUC of every version below ``root``, newest last: the mean over classes and categories if several."""
    tables = []
    for file in root.glob("*/*/summary.csv/*/summary.csv"):
        dataset, setting, _, version = file.relative_to(root).parts[:4]
        try:
            summary = pd.read_csv(file, keep_default_na=False)[SUMMARY]
        except (ValueError, KeyError) as error:
            logger.warning("%s is damaged (%s)", file, first_line(error))
            continue
        for column in ("category", "known_class"):
            if (summary[column] == "mean").any():
                summary = summary[summary[column] == "mean"]
        record_file = root / dataset / setting / "record.json" / version / "record.json"
        record = _read(record_file)
        origin = {name: str(record.get(name, ""))[:DIGITS] for name in ("revision", "data", "weights")}
        tables.append(summary.assign(dataset=dataset, setting=setting, version=version, **origin))
    cards = {file: _read(file) for file in root.glob(f"*/{PRODUCTION}/model/*/model/card.json")}
    tables += [_production_version(file, card, root) for file, card in cards.items() if card]
    if not tables:
        return pd.DataFrame(columns=COLUMNS)
    return pd.concat(tables)[COLUMNS].sort_values(["dataset", "setting", "version"], kind="stable")


def _read(file: Path) -> dict[str, Any]:
    """A JSON document; empty where it is missing or damaged."""
    try:
        if not is_intact(file):
            raise ValueError("it has not the checksum that it names")
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, TypeError, ValueError) as error:
        logger.warning("%s is damaged (%s)", file, first_line(error))
        return {}


def _production_version(file: Path, card: dict[str, Any], root: Path) -> pd.DataFrame:
    """The row of a production model: what it was made from; its evidence is that of the settings."""
    dataset, _, _, version = file.relative_to(root).parts[:4]
    weights = ", ".join(backbone["weights_digest"][:DIGITS] for backbone in card["backbones"])
    found: dict[str, Any] = {"dataset": dataset, "setting": PRODUCTION, "version": version, "method": TRAINED}
    found |= {
        "weights": weights,
        "n_anomalies": card["data"]["anomalies"],
        "n_seeds": 1,
        "auc_mean": float("nan"),
        "auc_std": float("nan"),
    }
    return pd.DataFrame([found | {"revision": card["revision"][:DIGITS], "data": card["data"]["digest"][:DIGITS]}])


def find_version(root: Path, dataset: str, setting: str, prefix: str) -> str:
    """The one version whose name begins with ``prefix``."""
    known = sorted(path.name for path in (root / dataset / setting / VERSIONED[setting == PRODUCTION]).glob("*"))
    found = [name for name in known if name.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    problem = "is not unique" if found else "does not exist"
    names = ", ".join(found or known) or "none"
    raise InputError(f"Version '{prefix}' of {dataset}, {setting} setting, {problem}; there are: {names}")


def check_version(
    record: dict[str, Any],
    trials: pd.DataFrame,
    models: dict[str, ArtefactFile],
    runs: pd.DataFrame,
    features: Features,
    learned_runs: pd.DataFrame | None = None,
    items: Mapping[str, int] | None = None,
) -> None:
    """Refuse models that are damaged, do not fit the present runs and features, or learned what is tested now.

    Args:
        record: of the version.
        trials: of the version.
        models: all pieces of the version.
        runs: the present runs.
        features: the present features.
        learned_runs: the runs of the version, needed with ``items``.
        items: the item of each sample, where no item may both train and test (``ingestion.group_split``).
    """
    for artefact in models.values():
        if problem := artefact.problem():
            raise InputError(f"The version is damaged: {artefact.path} {problem}; {ANOTHER}")
    for name, digest in record["models"].items():
        if name not in models or models[name].digest() != digest:
            path = models[name].path if name in models else name
            raise InputError(f"The version is damaged: {path} is not the piece that its record names; {ANOTHER}")
    if missing := sorted({run["run"] for run in records(runs)} - set(trials["run"])):
        raise InputError(f"The version has no model of the present runs {', '.join(missing)}")
    for trial in read_trials(trials, runs):
        pieces = [models[trial.piece_name(piece)] for piece in trial.specification.pieces]
        if any(piece.details["features"] != features.spec_digest for piece in pieces):
            raise InputError("The models of the version were made from other features than the present ones")
        learned = {content for piece in pieces for content in piece.details["learned"]}
        # copies of one image that the present run has on both sides are no sign of another split
        learned -= set(learned_contents([*trial.run["train_normals"], *trial.run["known_anomalies"]], features))
        if learned & set(learned_contents(tested(trial.run), features)):
            known = [sample for sample in tested(trial.run) if learned & set(learned_contents([sample], features))]
            raise InputError(
                f"The version's model of run {trial.run['run']} has learned {len(known)} samples that are tested now, "
                f"for example {known[0]}: the split has changed since"
            )
    if items is not None and learned_runs is not None:
        _refuse_shared_items(records(learned_runs), records(runs), items)


def _refuse_shared_items(
    learned_runs: list[dict[str, Any]], runs: list[dict[str, Any]], items: Mapping[str, int]
) -> None:
    learned = {run["run"]: {*run["train_normals"], *run["known_anomalies"]} for run in learned_runs}
    for run in runs:
        taken = {items[sample] for sample in learned[run["run"]] if sample in items}
        for sample in tested(run):
            if items[sample] in taken:
                raise InputError(
                    f"The version's model of run {run['run']} has learned from the item of {sample}, which is tested "
                    "now, and ingestion.group_split is on"
                )


def record(
    features: Features, models: dict[str, ArtefactFile], initial_models: dict[str, ArtefactFile]
) -> dict[str, Any]:
    """What results were made from, as the models themselves say: code, parameters, data, weights.

    ``revision`` is that of the code which fitted the models, ``scored_by`` that of the code which scored with them.
    """
    pieces = initial_models | models
    details = {name: artefact.details for name, artefact in pieces.items()}
    parameters: dict[str, Any] = {}
    for name, one in details.items():
        _, method, piece = name.split("|")
        parameters.setdefault(method, {})[piece] = one["parameters"]
    return {
        "revision": ", ".join(sorted({one["revision"] for one in details.values()})),
        "scored_by": code_revision(),
        "data": features.digest,
        "weights": ", ".join(sorted({one["weights"] for one in details.values()})),
        "features": ", ".join(sorted({one["features"] for one in details.values()})),
        "image_size": features.store.spec.image_size,
        "parameters": parameters,
        "models": {name: artefact.digest() for name, artefact in pieces.items()},
    }
