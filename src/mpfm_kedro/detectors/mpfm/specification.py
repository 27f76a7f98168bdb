"""The stages in which MPFM is fitted, and the parameters that each of them depends on. No torch is needed here."""

from typing import Any

from mpfm_kedro.parameters import PrototypeParameters, RepairParameters, TrainingParameters

# Raise a version when a change of the code changes its numbers (tests/test_golden_numbers.py): it is then fitted again.
STAGES = {"prototypes": 2, "training": 2, "calibration": 1}
SCORING_VERSION = 1


def prototype_parameters(prototypes: PrototypeParameters, repairs: RepairParameters) -> dict[str, Any]:
    """Of the first stage, which learns from no anomaly."""
    return prototypes.model_dump() | {"transport_start": repairs.transport_start}


def training_parameters(training: TrainingParameters, repairs: RepairParameters) -> dict[str, Any]:
    """Of the second stage."""
    return training.model_dump(exclude={"scores"}) | repairs.model_dump(exclude={"fusion"})


def calibration_parameters(training: TrainingParameters, repairs: RepairParameters, step_0: bool) -> dict[str, Any]:
    """Of the third stage."""
    return {"fusion": repairs.fusion, "scores": training.scores, "step_0": step_0}


def stage_name(stage: str, backbone: int) -> str:
    """The name of a stage that every backbone has; 0 is the first."""
    return stage if backbone == 0 else f"{stage}_{backbone + 1}"
