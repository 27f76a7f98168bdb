"""Metrics that are also logged to MLflow (conf/mlflow)."""

from typing import Any

from mpfm_kedro.datasets.tables import MetricsDataset


class MlflowMetricsDataset(MetricsDataset):
    """The document of metrics, whose numbers also go to the MLflow run that kedro-mlflow has opened."""

    def save(self, data: dict[str, Any]) -> None:
        """Replace the document, and log its numbers."""
        import mlflow  # an optional package

        super().save(data)
        mlflow.log_metrics({name: value for name, value in data.items() if isinstance(value, int | float)})
