"""The pipelines of the project: a table of contents."""

from kedro.pipeline import Pipeline

NAMES = ["datasets", "ingestion", "audit", "features", "general_setting", "hard_setting", "comparison", "ablation"]
NAMES += ["sensitivity", "study", "fit", "predict", "learn", "export"]


def register_pipelines() -> dict[str, Pipeline]:
    """All pipelines by name; names and parameters are checked before these imports, which take seconds."""
    from mpfm_kedro.pipelines import audit, datasets, features, ingestion, production, studies

    pipelines = {
        "datasets": datasets.create_pipeline(),
        "ingestion": ingestion.create_pipeline(),
        "audit": ingestion.create_pipeline() + audit.create_pipeline(),
        "features": ingestion.create_pipeline() + features.create_pipeline(),
        "general_setting": studies.create_setting("general"),
        "hard_setting": studies.create_setting("hard"),
        "comparison": studies.create_comparison(),
        "ablation": studies.create_ablation(),
        "sensitivity": studies.create_sensitivity(),
        "study": studies.create_study(),
        "fit": production.create_fit(),
        "predict": production.create_predict(),
        "learn": production.create_learn(),
        "export": production.create_export(),
    }
    return {**pipelines, "__default__": pipelines["hard_setting"]}
