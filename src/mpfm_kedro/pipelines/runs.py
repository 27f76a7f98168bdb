"""The runs of each experiment: which samples train, which are tested, and by which methods."""

import pandas as pd

from mpfm_kedro.parameters import AblationParameters, ComparisonParameters, ProtocolParameters, SensitivityParameters
from mpfm_kedro.protocol.methods import ablated_methods, compared_methods, rows_of_mpfm, sensitivity_methods, to_json
from mpfm_kedro.protocol.runs import (
    make_general_runs,
    make_hard_runs,
    make_learning_runs,
    make_production_run,
    make_study_runs,
)


def draw_general_runs(samples: pd.DataFrame, protocol: ProtocolParameters) -> pd.DataFrame:
    """General setting: known anomalies of all classes."""
    return make_general_runs(samples, protocol).assign(methods=to_json(rows_of_mpfm()))


def draw_hard_runs(samples: pd.DataFrame, protocol: ProtocolParameters) -> pd.DataFrame:
    """Hard setting: known anomalies of one class, tested on all the others."""
    return make_hard_runs(samples, protocol).assign(methods=to_json(rows_of_mpfm()))


def draw_compared_runs(
    samples: pd.DataFrame, protocol: ProtocolParameters, comparison: ComparisonParameters
) -> pd.DataFrame:
    """The runs of a comparison, each setting with its own M, seeds and methods."""
    covered = {str(setting): comparison.of(setting, protocol.n_seeds) for setting in comparison.settings}
    settings = {
        setting: protocol.model_copy(update=chosen.model_dump(include={"n_anomalies", "n_seeds"}))
        for setting, chosen in covered.items()
    }
    runs, methods = make_study_runs(samples, settings), compared_methods(comparison)
    return runs.assign(methods=[to_json(methods[setting]) for setting in runs["setting"]])


def draw_variant_runs(
    samples: pd.DataFrame,
    protocol: ProtocolParameters,
    ablation: AblationParameters,
    sensitivity: SensitivityParameters | None = None,
) -> pd.DataFrame:
    """The runs of the ablation with all its variants, or those of the sensitivity study, in the same settings."""
    methods = ablated_methods(ablation) if sensitivity is None else sensitivity_methods(sensitivity)
    return make_study_runs(samples, dict.fromkeys(ablation.settings, protocol)).assign(methods=to_json(methods))


def draw_production_run(samples: pd.DataFrame, protocol: ProtocolParameters) -> pd.DataFrame:
    """The one run of a production model: MPFM, or without a known anomaly MPFM that knows none."""
    mpfm, _, unsupervised = rows_of_mpfm()
    run = make_production_run(samples, protocol.first_seed)
    return run.assign(methods=to_json([mpfm if run["known_anomalies"].map(len).all() else unsupervised]))


def draw_learning_runs(
    samples: pd.DataFrame, production_samples: pd.DataFrame, protocol: ProtocolParameters
) -> pd.DataFrame:
    """The general setting before and after the collection was learned."""
    learned = production_samples[~production_samples["sample_id"].isin(set(samples["sample_id"]))]
    items = production_samples.set_index("sample_id")["item"]  # joined with those of learned images
    samples = samples.assign(item=samples["sample_id"].map(items))
    runs = make_learning_runs(samples, learned, protocol.first_seed)
    mpfm, _, unsupervised = rows_of_mpfm()
    known = runs["known_anomalies"].map(len).all()
    return runs.assign(methods=to_json([mpfm] if known else [mpfm, unsupervised]))
