"""What decides a number is in the keys; what decides none is not."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest

from mpfm_kedro import provenance
from mpfm_kedro.pipelines.stage_code import STAGES, write_stage_code

TRAINING = "mpfm_kedro.detectors.mpfm.training"
CLOSED_FORM = "mpfm_kedro.detectors.mpfm.closed_form"
DRA = "mpfm_kedro.detectors.baselines.dra"
EXTRACTION = "mpfm_kedro.backbones.extraction"
LOG_LINE = re.compile(r"logger\.info\('[^']*', ")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package that provenance looks at; edits are seen at once."""
    copy = tmp_path / "mpfm_kedro"
    shutil.copytree(provenance.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(provenance, "PACKAGE", copy)
    monkeypatch.setattr(provenance, "code_digest", provenance.code_digest.__wrapped__)
    return copy


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_changed_view_code_changes_features(package: Path):
    before = provenance.code_digest(EXTRACTION)
    replace(package / "images/views.py", "AREA = (0.02,", "AREA = (0.03,")
    assert provenance.code_digest(EXTRACTION) != before


@pytest.mark.parametrize("module", [TRAINING, CLOSED_FORM, DRA, EXTRACTION])
def test_comments_docstrings_and_log_lines_change_nothing(package: Path, module: str):
    before = provenance.code_digest(module)
    for name in provenance.code_closure(module):
        file = package.parent.joinpath(*name.split("."))
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                node.body[0].value.value = "Another docstring."  # type: ignore[attr-defined]
        text = ast.unparse(tree)  # without comments
        assert "Another docstring." in text
        text = LOG_LINE.sub("logger.info('another line', ", text)
        file.write_text(f"{text}\n# a comment\n")
    assert provenance.code_digest(module) == before


def test_another_number_changes_the_digest(package: Path):
    before = provenance.code_digest(CLOSED_FORM)
    replace(package / "detectors/mpfm/patch_fitting.py", "SHRINKAGE = 0.1", "SHRINKAGE = 0.2")
    assert provenance.code_digest(CLOSED_FORM) != before


def test_a_change_of_the_training_touches_neither_closed_form_nor_baselines(package: Path):
    before = [provenance.code_digest(module) for module in (TRAINING, CLOSED_FORM, DRA)]
    replace(package / "detectors/mpfm/training.py", "MONITORED = 256", "MONITORED = 128")
    after = [provenance.code_digest(module) for module in (TRAINING, CLOSED_FORM, DRA)]
    assert [one != other for one, other in zip(before, after, strict=True)] == [True, False, False]


def test_fields_of_a_result_type_count(package: Path):
    before = provenance.code_digest(TRAINING)
    replace(
        package / "detectors/mpfm/velocity.py",
        "    log_weight: Tensor\n    mean: Tensor",
        "    mean: Tensor\n    log_weight: Tensor",
    )
    assert provenance.code_digest(TRAINING) != before


def test_reports_and_pipelines_are_no_part_of_a_detector():
    for module in (TRAINING, CLOSED_FORM, DRA, EXTRACTION):
        rooms = {name.split(".")[1] for name in provenance.code_closure(module)}
        assert not rooms & {"reports", "pipelines", "datasets", "experiments", "hooks", "cli", "parallel"}


def test_libraries_that_decide_numbers_are_named():
    assert set(provenance.library_versions()) >= {"torch", "torchvision", "pillow", "scikit-learn", "numpy"}


@pytest.mark.parametrize(
    ("file", "old", "new", "stages"),
    [
        ("images/views.py", "JITTER = 0.1", "JITTER = 0.2", {"features"}),
        ("detectors/mpfm/training.py", "MONITORED = 256", "MONITORED = 128", {"training"}),
        ("reports/figures.py", "false alarms among", "alarms among", {"reporting"}),
        ("cli.py", "no version", "none", set()),
    ],
)
def test_stage_code_names_the_stages_that_a_change_decides(package, tmp_path, monkeypatch, file, old, new, stages):
    monkeypatch.setattr("mpfm_kedro.pipelines.stage_code.code_digest", provenance.code_digest)

    def digests(name: str) -> dict[str, str]:
        write_stage_code(tmp_path / name)
        return {stage: (tmp_path / name / f"{stage}.txt").read_text() for stage in STAGES}

    before = digests("before")
    replace(package / file, old, new)
    after = digests("after")
    assert {stage for stage in STAGES if before[stage] != after[stage]} >= stages
    untouched = {"raw", "weights", "ingestion"} | ({"features"} if file != "images/views.py" else set())
    assert not {stage for stage in STAGES if before[stage] != after[stage]} & untouched


def test_imports_for_type_checkers_decide_nothing():
    closure = provenance.code_closure("mpfm_kedro.experiments.fitting")
    assert "mpfm_kedro.experiments.run_data" in closure and "mpfm_kedro.backbones.features" in closure
    assert "mpfm_kedro.experiments.trials" not in closure
