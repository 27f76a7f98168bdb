"""Which code decides the results of each stage, for tools that rerun stages: DVC depends on these digests.

A comment, a docstring or a log line changes no digest; another library version changes all of them.
"""

from __future__ import annotations

from pathlib import Path

from mpfm_kedro.files import replacing
from mpfm_kedro.provenance import NAME, code_digest, key_digest, library_versions

MPFM = "detectors.mpfm"
# Besides the stage's own nodes and what they import: code that is named by strings, and steps before Kedro.
STAGES = {
    "raw": ("sources.fetching",),
    "weights": ("backbones.weights",),
    "ingestion": ("pipelines.ingestion.nodes",),
    "audit": ("pipelines.audit.nodes", "pipelines.audit.sheets"),
    "features": ("pipelines.features.nodes",),
    "runs": ("experiments.protocol", "experiments.specifications", "experiments.trials"),
    "prototypes": ("pipelines.prototypes.nodes", f"{MPFM}.stages"),
    "training": ("pipelines.training.nodes", f"{MPFM}.stages"),
    "scoring": ("pipelines.scoring.nodes", f"{MPFM}.detector"),
    "evaluation": ("experiments.measures", "experiments.intervals"),
    "reporting": ("pipelines.reporting.pipeline",),
}


def write_stage_code(folder: Path) -> None:
    """Write one file per stage with the digest of its code and libraries."""
    for stage, modules in STAGES.items():
        digest = key_digest([code_digest(*(f"{NAME}.{module}" for module in modules)), library_versions()])
        with replacing(folder / f"{stage}.txt") as partial:
            partial.write_text(f"{digest}\n")
