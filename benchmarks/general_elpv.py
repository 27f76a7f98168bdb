"""One cell of the protocol for benchmarks: ELPV at 224 px, general setting, ten known anomalies, a development seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from mpfm_kedro.backbones.extraction import ViewImages
from mpfm_kedro.backbones.rows import FeatureRows
from mpfm_kedro.configuration import project_loader
from mpfm_kedro.detectors.base import Artefact, Context, TrainingData
from mpfm_kedro.detectors.mpfm.specification import calibration_parameters, prototype_parameters, training_parameters
from mpfm_kedro.detectors.mpfm.stages import fit_calibration, fit_modules, fit_prototypes
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.images.views import ORIGINAL
from mpfm_kedro.parameter_checks import check_parameters
from mpfm_kedro.parameters import Parameters
from mpfm_kedro.pipelines.ingestion import split_normals
from mpfm_kedro.protocol.runs import make_general_runs, records
from mpfm_kedro.sources import elpv

SIZE, KNOWN = 224, 10
SEED = 100  # of development: 0 to 4 are those of the results
WEIGHTS = Path("data/01_raw/weights")


@dataclass(frozen=True)
class Cell:
    """What a run learns from and is tested on, as images.

    Args:
        run: which samples train and which test.
        views: the originals of all samples, then the augmented views of the known anomalies; position is the index.
        images: reads them.
    """

    run: dict[str, Any]
    views: pd.DataFrame
    images: ImageLoader

    def dataset(self, positions: np.ndarray | slice = slice(None)) -> ViewImages:
        """Some of the views as the backbone reads them."""
        return ViewImages(self.views.iloc[positions], self.images.read, SIZE)

    def positions(self, samples: Sequence[str], view: str = ORIGINAL) -> np.ndarray:
        """Where samples are among the views."""
        own = self.views[self.views["view"] == view]
        return np.array(pd.Series(own.index, own["sample_id"])[list(samples)])

    @property
    def normals(self) -> np.ndarray:
        """Positions of the training normals."""
        return self.positions(self.run["train_normals"])

    @property
    def anomalies(self) -> np.ndarray:
        """Positions of the known anomalies, view after view."""
        views = self.views["view"].unique()
        return np.concatenate([self.positions(self.run["known_anomalies"], view) for view in views])

    @property
    def tested(self) -> np.ndarray:
        """Positions of the test set, normals first."""
        return self.positions([*self.run["test_normals"], *self.run["test_anomalies"]])

    def table(self, scores: np.ndarray) -> pd.DataFrame:
        """Scores and labels of the test set."""
        label = [0] * len(self.run["test_normals"]) + [1] * len(self.run["test_anomalies"])
        return pd.DataFrame({"label": label, "score": scores})


def read_parameters() -> Parameters:
    """As the configuration has them by default."""
    return check_parameters(project_loader()["parameters"])


def open_cell(parameters: Parameters, n_images: int = 0) -> Cell:
    """The cell with all images, or with so many of them for a quick try."""
    folder = elpv.SOURCE.locate(Path(parameters.data_root))
    listed = elpv.SOURCE.list_samples(folder)
    if n_images:
        listed = listed.iloc[np.linspace(0, len(listed) - 1, min(n_images, len(listed))).astype(int)]
    samples = split_normals(
        listed.assign(problem="", content_hash=listed["path"], dhash="").reset_index(drop=True), parameters.ingestion
    )
    one = parameters.protocol.model_copy(update={"n_anomalies": [KNOWN], "n_seeds": 1, "first_seed": SEED})
    (run,) = records(make_general_runs(samples, one))
    known = samples[samples["sample_id"].isin(run["known_anomalies"])]
    views = [samples.assign(view=ORIGINAL), *(known.assign(view=view) for view in parameters.features.anomaly_views)]
    return Cell(run, pd.concat(views, ignore_index=True), ImageLoader("elpv", folder, int(1e8), Path("unused")))


def take(pooled: np.ndarray, maps: np.ndarray, positions: np.ndarray) -> FeatureRows:
    """Some rows of features that are in memory."""
    return FeatureRows(pooled[positions], maps, positions, np.arange(len(positions)))


def training_data(normals: FeatureRows, anomalies: FeatureRows, n_known: int) -> TrainingData:
    """Normals, and M known anomalies view after view; no pseudo-anomalies, which MPFM does not need."""
    known = replace(anomalies, source=np.arange(len(anomalies)) % n_known)
    return TrainingData(normals, normals.take(np.arange(0)), known)


def fit(parameters: Parameters, data: TrainingData, trained: bool = True, **changes: Any) -> dict[str, Artefact]:
    """MPFM stage by stage, as the pipeline does, without its memory; ``changes`` are parameters of the stages."""
    unsupervised = replace(data, anomalies=data.anomalies.take(np.arange(0)))
    training, repairs = parameters.training, parameters.repairs
    stages = {"prototypes": (fit_prototypes, unsupervised, prototype_parameters(parameters.prototypes, repairs))}
    if trained:
        stages["training"] = (fit_modules, data, training_parameters(training, repairs))
    last = calibration_parameters(training, repairs, step_0=False) | {"n_backbones": 1}
    stages["calibration"] = (fit_calibration, data if trained else unsupervised, last)
    fits: dict[str, Artefact] = {}
    for name, (function, learned, own) in stages.items():
        with torch.random.fork_rng(devices=[]):
            fits[name] = function(learned, fits, own | {"backbone": 0} | changes, SEED, Context())
    return fits
