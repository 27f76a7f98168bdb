"""The history: every version of models and results that `kedro run` kept."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from mpfm_kedro.errors import InputError
from mpfm_kedro.io.artefacts import ArtefactsDataset
from mpfm_kedro.io.feature_store import FeaturesDataset

NUMBERS = ["n_anomalies", "n_seeds", "auc_mean", "auc_std"]
COLUMNS = ["dataset", "setting", "version", "method", *NUMBERS, "revision", "data", "weights"]
DIGITS = 12


@dataclass(frozen=True)
class History:
    """The versions below ``root``, the parameter ``output_root``."""

    root: Path

    def overview(self) -> pd.DataFrame:
        """AUC of every version, newest last: of the mean over classes and categories where there are several."""
        tables = []
        for file in self.root.glob("history/*/*/summary.csv/*/summary.csv"):
            dataset, setting, _, version = file.relative_to(self.root / "history").parts[:4]
            summary = pd.read_csv(file, keep_default_na=False)
            for column in ("category", "known_class"):
                if (summary[column] == "mean").any():
                    summary = summary[summary[column] == "mean"]
            origin = self._record(dataset, setting, version)
            tables.append(summary.assign(dataset=dataset, setting=setting, version=version, **origin))
        if not tables:
            return pd.DataFrame(columns=COLUMNS)
        return pd.concat(tables)[COLUMNS].sort_values(["dataset", "setting", "version"], kind="stable")

    def use(self, dataset: str, setting: str, version: str) -> None:
        """Put the models of a version in the place of the present ones.

        Raises:
            InputError: There is no such version, or its models are not of the present features and runs.
        """
        kept = self.root / "history" / dataset / setting / "models"
        if not (kept / version).is_dir():
            known = ", ".join(sorted(path.name for path in kept.glob("*"))) or "none"
            raise InputError(f"No version '{version}' of {dataset}, {setting} setting; there are: {known}")
        models = ArtefactsDataset(str(kept / version / "models")).load()
        feature = self.root / "04_feature"
        features = FeaturesDataset(str(feature / dataset / "features.parquet"), str(feature / "store")).load()
        runs = pd.read_parquet(self.root / "05_model_input" / dataset / setting / "runs.parquet")["run"]
        if missing := sorted(set(runs) - set(models)):
            raise InputError(f"Version '{version}' has no model of the present runs {', '.join(missing)}")
        if any(models[run].details()["features"] != features.store.spec.digest for run in runs):
            raise InputError(f"The models of version '{version}' were made from other features than the present ones")
        ArtefactsDataset(str(self.root / "06_models" / dataset / setting / "models")).save(models)

    def _record(self, dataset: str, setting: str, version: str) -> dict[str, str]:
        """Code revision, data digest and weights digest of a version; empty where none were kept."""
        file = self.root / "history" / dataset / setting / "record.json" / version / "record.json"
        record = json.loads(file.read_text()) if file.is_file() else {}
        return {name: record.get(name, "")[:DIGITS] for name in ("data", "weights")} | {
            "revision": record.get("revision", "")
        }
