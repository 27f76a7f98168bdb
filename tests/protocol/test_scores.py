"""Scores and pixel measures of trials, from real detectors on features whose maps show the defect where the mask is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from mpfm_kedro.detectors.registry import baselines
from mpfm_kedro.errors import InputError
from mpfm_kedro.evaluation.columns import COSTS, SCORES
from mpfm_kedro.evaluation.pixel_measures import Marked
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.protocol.fits import Plan
from mpfm_kedro.protocol.memory import Memory
from mpfm_kedro.protocol.methods import Method, rows_of_mpfm, to_json
from mpfm_kedro.protocol.runs import make_study_runs
from mpfm_kedro.protocol.scores import plan_scores, where_marked
from mpfm_kedro.protocol.trials import Trial, list_trials, read_trials, to_table
from protocol.small_tables import (
    CELL,
    CELLS,
    COMPUTE,
    defect_cell,
    marked_features,
    plan_mpfm,
    project_parameters,
    protocol,
    sample_table,
    small_parameters,
)

SIZE = CELLS * CELL
BASELINES = ["Mahalanobis", "logistic regression", "patch-kNN"]


def marked_samples(folder: Path) -> pd.DataFrame:
    """Normals without masks, and anomalies with a mask of the one cell that is defective."""
    samples = sample_table({"dent": 12, "hole": 11}, 30, 8).assign(width=SIZE, height=SIZE)
    (folder / "masks").mkdir()
    for place, row in samples[samples["label"] == 1].iterrows():
        y, x = defect_cell(row["sample_id"])
        mask = np.zeros((SIZE, SIZE), dtype=np.uint8)
        mask[y * CELL : (y + 1) * CELL, x * CELL : (x + 1) * CELL] = 255
        samples.loc[place, "mask_path"] = f"masks/{row['sample_id'].replace('/', '')}.png"
        Image.fromarray(mask).save(folder / samples.loc[place, "mask_path"])
    return samples


class World:
    """Samples, images and features; two seeds in two settings; trials of MPFM that knows no anomaly, fitted."""

    def __init__(self, folder: Path) -> None:
        self.samples = marked_samples(folder)
        self.features = marked_features(self.samples, folder / "store")
        self.images = ImageLoader("synthetic", folder, 10**8, folder / "files.parquet")
        self.memory = Memory(folder / "memory")
        self.runs = make_study_runs(self.samples, dict.fromkeys(("general", "hard"), protocol([3, 1])))
        methods = [rows_of_mpfm()[-1], *(Method(name=name, mpfm=False) for name in BASELINES)]
        self.runs = self.runs.assign(methods=to_json(methods))
        self.trials = plan_mpfm(self.runs, self.features, small_parameters(project_parameters()), self.memory)

    @property
    def baselines(self) -> list[Trial]:
        return [trial for trial in list_trials(self.runs) if not trial.method.mpfm]

    def plan(self, trials: list[Trial], samples: pd.DataFrame | None = None, steps: int = 5) -> tuple[Plan, Plan, Plan]:
        """Scores, pixel measures and costs."""
        samples = self.samples if samples is None else samples
        return plan_scores(trials, self.features, samples, self.images, COMPUTE, steps)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("scores"))


def test_trials_survive_their_table(world):
    assert read_trials(to_table(world.trials)) == world.trials
    assert [trial.name for trial in list_trials(world.runs)[:4]] == [
        {"setting": "general", "run": "general-M3-seed0", "method": name}
        for name in ("MPFM, no anomaly known", *BASELINES)
    ]


def test_scores_are_in_the_order_of_runs_methods_and_test_samples(world, in_this_process):
    plan, _, timed = world.plan([*world.baselines, *world.trials])
    scores, costs = plan.run(world.memory), timed.run(world.memory)
    assert scores.columns.tolist() == SCORES and costs.columns.tolist() == COSTS
    expected = [
        (run["run"], method, sample, label)
        for run in world.runs.to_dict("records")
        for method in ("MPFM, no anomaly known", *BASELINES)
        for label, kind in enumerate(("test_normals", "test_anomalies"))
        for sample in run[kind]
    ]
    assert list(scores[["run", "method", "sample", "label"]].itertuples(index=False, name=None)) == expected
    mpfm = scores["method"] == "MPFM, no anomaly known"
    assert scores.loc[mpfm, "score_g"].notna().all() and (scores.loc[mpfm, "mode"] >= 0).all()
    assert scores.loc[~mpfm, "score_g"].isna().all() and (scores.loc[~mpfm, "mode"] == -1).all()
    assert scores["score"].notna().all()
    assert len(costs) == 4 * len(world.runs) and (costs["seconds"] >= 0).all()
    # one detector for all runs of a method that reads no anomaly, one for each run of the other
    assert len(in_this_process) == 3 + len(world.runs)
    plan.run(world.memory)
    assert len(in_this_process) == 3 + len(world.runs), "what is there is not computed again"


def test_a_baseline_is_fitted_as_it_would_be_alone(world, in_this_process, tmp_path):
    """Scores do not depend on which runs share a detector and are scored together."""
    together = world.plan(world.baselines)[0].run(world.memory)
    last = [trial for trial in list_trials(world.runs) if trial.method.name == "Mahalanobis"][-1]
    alone = world.plan([last])[0].run(Memory(tmp_path))
    own = together[(together["run"] == last.run["run"]) & (together["method"] == "Mahalanobis")]
    pd.testing.assert_frame_equal(alone, own.reset_index(drop=True))


@pytest.mark.parametrize("name", [detector.name for detector in baselines()])
def test_keys_of_a_baseline_name_steps_seed_and_anomalies_where_they_matter(world, name):
    (detector,) = (one for one in baselines() if one.name == name)
    trial = replace(list_trials(world.runs)[0], method=Method(name=name, mpfm=False))

    def key(steps: int = 5, **changes: object) -> str:
        (task,) = world.plan([replace(trial, run=trial.run | changes)], steps=steps)[0].tasks
        return task.entry.key

    known = [*trial.run["known_anomalies"][:2], "hole/010"]
    assert (key(steps=6) != key()) == ("{steps}" in detector.budget)
    assert (key(seed=5) != key()) == detector.random
    assert (key(known_anomalies=known) != key()) == detector.supervised
    assert key(run="renamed", setting="hard") == key()
    assert key(train_normals=trial.run["train_normals"][1:]) != key()


def test_a_supervised_baseline_has_no_trial_without_known_anomalies(world):
    trials = [replace(trial, run=trial.run | {"known_anomalies": []}) for trial in list_trials(world.runs)[1:3]]
    assert [task.baseline for task in world.plan(trials)[0].tasks] == ["Mahalanobis"]


def pixels(world: World, samples: pd.DataFrame | None = None) -> pd.DataFrame:
    return world.plan([*world.trials, *world.baselines], samples)[1].run(world.memory)


@pytest.mark.usefixtures("in_this_process")
class TestPixels:
    """Pixel measures of detectors with heat maps, where there are masks."""

    def test_each_run_of_a_detector_with_maps_is_measured(self, world):
        found = pixels(world)
        assert set(found["method"]) == {"MPFM, no anomaly known"}  # the baselines have no maps
        assert found["run"].tolist() == world.runs["run"].tolist()
        assert found["pixel_auroc"].between(0.9, 1).all()
        assert found["aupro"].between(0.6, 1).all()
        assert found["pixel_f1"].between(0.3, 1).all()
        # runs with other test samples share the detector, and have measures of their own
        assert found["pixel_auroc"].nunique() == 3

    def test_another_mask_is_measured_again(self, world, in_this_process):
        first, file = pixels(world), world.images.folder / world.samples["mask_path"].iloc[-1]
        del in_this_process[:]
        content = file.read_bytes()
        try:
            Image.new("L", (SIZE, SIZE), 255).save(file)
            changed = pixels(world)
        finally:
            file.write_bytes(content)
        assert len(in_this_process) > 0
        assert (changed["aupro"] != first["aupro"]).any()

    def test_without_masks_nothing_is_measured(self, world):
        found = world.plan(world.trials, world.samples.assign(mask_path=""))[1].run(world.memory)
        assert found.empty
        assert found.columns.tolist() == ["setting", "run", "method", "pixel_auroc", "aupro", "pixel_f1"]

    def test_an_anomaly_without_a_mask_does_not_count(self, world):
        """Its defect would be counted as normal pixels, and lower the figures."""
        few = world.samples["sample_id"].isin(["dent/000", "hole/000"])
        found = pixels(world, world.samples.assign(mask_path=world.samples["mask_path"].where(few, "")))
        assert len(found) and (found["pixel_f1"] > 0.3).all()

    def test_a_missing_mask_is_named(self, world):
        gone = world.samples["mask_path"].where(world.samples["label"] == 0, "masks/gone.png")
        with pytest.raises(InputError, match=r"Cannot read the mask .*gone\.png"):
            world.plan(world.trials, world.samples.assign(mask_path=gone))


def test_where_samples_are_marked():
    samples = pd.DataFrame(
        [
            ("whole", 1, "m.png", "", 900, 600),
            ("crop", 1, "m.png", "256,0,512,200", 4096, 256),
            ("large", 0, "", "", 4096, 256),
            ("normal strip", 0, "m.png", "0,0,50,60", 50, 180),
            ("unknown", 1, "", "", 10, 10),
        ],
        columns=["sample_id", "label", "mask_path", "crop", "width", "height"],
    )
    assert where_marked(samples) == {
        "whole": Marked("m.png", "", (900, 600)),
        "crop": Marked("m.png", "256,0,512,200", (256, 200)),
        "large": Marked("", "", (1024, 64)),
        "normal strip": Marked("m.png", "0,0,50,60", (50, 60)),
        "unknown": None,
    }
