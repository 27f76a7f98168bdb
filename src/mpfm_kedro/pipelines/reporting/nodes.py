"""What a report shows besides numbers."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from mpfm_kedro.backbones.features import Features
from mpfm_kedro.experiments.cache import ArtefactFile
from mpfm_kedro.experiments.columns import ours
from mpfm_kedro.experiments.models import typical_normals
from mpfm_kedro.experiments.trials import pieces_of, read_trials
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.parallel import torch_device
from mpfm_kedro.parameters import InspectionParameters
from mpfm_kedro.reports.groups import to_strip

MOST_CELLS = 8
TYPICAL = 6  # images of each group


def show_mistakes(
    runs: pd.DataFrame,
    trials: pd.DataFrame,
    scores: pd.DataFrame,
    features: Features,
    samples: pd.DataFrame,
    images: ImageLoader,
    initial_models: dict[str, ArtefactFile],
    models: dict[str, ArtefactFile],
    report_folder: Path,
    inspection: InspectionParameters,
    device: str,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of the first seed's MPFM in each cell: misses and false alarms as images, precision and recall at a threshold.

    Each image has a link to its file, relative to the folder of the report.
    """
    from mpfm_kedro.inspection.mistakes import COLUMNS, POINTS, find_mistakes  # with torch, which is slow to import

    method = ours(trials["method"])
    first = (
        trials[trials["method"] == method].drop_duplicates(["category", "known_class", "n_anomalies"]).head(MOST_CELLS)
    )
    tables, points = [pd.DataFrame(columns=COLUMNS)], []
    for trial in read_trials(first, runs):
        pieces = {name: file.load() for name, file in pieces_of(trial, initial_models | models).items()}
        own = scores[(scores["run"] == trial.run["run"]) & (scores["method"] == method)]
        rate, confidence = inspection.false_alarm_rate, inspection.confidence
        table, point = find_mistakes(
            trial.run, pieces, own, features, samples, images.read, rate, confidence, torch_device(device)
        )
        tables.append(table)
        points.append(point)
    table = pd.concat(tables[1:] or tables, ignore_index=True)
    paths = samples.set_index("sample_id")["path"].loc[table["sample"]]
    links = [quote(Path(os.path.relpath(images.folder / path, report_folder)).as_posix()) for path in paths]
    return table.assign(link=links), pd.DataFrame(points, columns=POINTS)


def show_groups(
    runs: pd.DataFrame, samples: pd.DataFrame, images: ImageLoader, initial_models: dict[str, ArtefactFile]
) -> pd.DataFrame:
    """The groups that K-means++ found among the first run's normals: size, and a strip of their most typical images."""
    where = samples.set_index("sample_id")[["path", "crop", "content_hash", "pixel_range"]]
    rows = []
    for size, members in typical_normals(runs, initial_models, TYPICAL):
        thumbnails = [images.thumbnail(*where.loc[sample]) for sample in members]
        rows.append({"size": size, "image": to_strip(thumbnails)})
    return pd.DataFrame(rows, columns=["size", "image"])


def keep_report(report: str) -> str:
    """The report as a version, two folders deeper below the output folder: its links lead to the same files."""
    return report.replace("<head>", "<head><base href='../../'>", 1)
