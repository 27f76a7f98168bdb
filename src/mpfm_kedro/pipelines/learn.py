"""Images that a model got wrong, and what changes once it has learned them."""

from pathlib import Path

import pandas as pd

from mpfm_kedro.inspection.collection import LABELS, Collection
from mpfm_kedro.inspection.finding import find_images
from mpfm_kedro.inspection.model import Model, model_digest
from mpfm_kedro.inspection.thresholds import GOOD, decide
from mpfm_kedro.parameters import IngestionParameters, InspectionParameters
from mpfm_kedro.reports.pages import render

SHOWN = 20  # taught images and predictions that change, on the terminal


def add_images(
    images: str,
    label: str,
    collection: Collection,
    samples: pd.DataFrame,
    model: Model,
    ingestion: IngestionParameters,
) -> tuple[Collection, Model]:
    """The collection of the model with more images, and the model that does not know them yet.

    All images are read before any is kept. Images of an interrupted run are not in the collection: they can be learned.
    """
    from mpfm_kedro.inspection.preparation import read_image  # with torch, which is slow to import

    files = find_images(images)
    for file in files:
        read_image(file, model.card["pixel_range"], ingestion.max_megapixels)
    return collection.add(files, label, samples), model


def compare_predictions(
    before: Model,
    after: Model,
    collection: Collection,
    predictions: pd.DataFrame,
    log_folder: Path,
    parameters: InspectionParameters,
    ingestion: IngestionParameters,
) -> pd.DataFrame:
    """Score and decision of taught images and earlier predictions by the model before and after learning.

    Of taught images also by the model of cross-fitting that has not seen them. Each model has a log: predictions by
    the old one are there, and those by the new one need no computing later.
    """
    from mpfm_kedro.inspection.inspector import Inspector  # with torch, which is slow to import
    from mpfm_kedro.inspection.predictions import PredictionLog, predict_files

    known = {row["content_hash"] for row in before.card["learned"]}
    taught = collection.table[~collection.table["content_hash"].isin(known)]
    taught.index = pd.Index([str((collection.folder / file).absolute()) for file in taught["file"]])
    names = "collection/" + taught["file"]
    usable = predictions.loc[predictions["error"] == "", "path"]
    earlier = [path for path in usable if Path(path).is_file() and path not in set(taught["origin"])]
    tables = []
    for name, model in (("before", before), ("after", after)):
        inspector = Inspector(model, parameters.device, ingestion.max_megapixels)
        threshold = inspector.threshold_for(parameters.false_alarm_rate, parameters.confidence)
        log = PredictionLog.of(log_folder, model.card)
        files = [Path(path) for path in [*taught.index, *earlier]]
        table = predict_files(inspector, files, log, threshold, workers=parameters.workers)
        table = table.drop_duplicates("path").set_index("path")[["score", "decision", "p_value", "likeness"]]
        tables.append(table.add_suffix(f"_{name}"))
    compared = pd.concat(tables, axis=1).rename_axis("path")
    compared["taught"] = taught["label"].map({number: label for label, number in LABELS.items()})
    nearest = pd.Series(
        {path: row["anomalies"] for path, row in log.read(set(compared.index), ["anomalies"]).items()}
    ).explode()
    compared["like_taught"] = nearest.isin(names) & (compared["likeness_after"] > threshold.alike)
    compared["score_held_out"] = names.map(after.calibration.table.set_index("sample_id")["score"])
    unseen = compared["score_held_out"].dropna()
    compared["decision_held_out"] = pd.Series(decide(unseen, threshold), unseen.index)
    compared[["taught", "decision_held_out"]] = compared[["taught", "decision_held_out"]].fillna("")
    return compared.rename(index=taught["origin"].to_dict()).reset_index()


def summarise_learning(
    before: Model, after: Model, compared: pd.DataFrame, run_metrics: pd.DataFrame, restore_commands: dict[str, str]
) -> str:
    """What has changed, for the terminal."""
    taught, earlier = compared[compared["taught"] != ""], compared[compared["taught"] == ""]
    return render(
        "learning.txt",
        before=before.card,
        after=after.card,
        taught=taught.to_dict("records"),
        stays_good=taught[(taught["taught"] == "anomaly") & (taught["decision_after"] == GOOD)].to_dict("records"),
        alike=earlier[earlier["like_taught"]],
        n_earlier=len(earlier),
        flipped=earlier[earlier["decision_before"] != earlier["decision_after"]].to_dict("records"),
        most=SHOWN,
        auc=run_metrics.drop_duplicates("run").set_index("run")["auc"],  # the first row of a run is MPFM
        undo=restore_commands.get(model_digest(before.card), "kedro versions list shows the models"),
    )
