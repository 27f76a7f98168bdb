"""The project's commands, by click's runner."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpfm_kedro.cli import cli
from mpfm_kedro.pipeline_registry import NAMES, register_pipelines

SLOW = {"torch", "sklearn", "scipy.stats"}
VERSION = "2026-01-02T03.04.05.678Z"


def call(*arguments: str, fails: bool = False) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code != 0) == fails, result.output
    return result.output


def keep(root: Path, version: str, **changes: object) -> Path:
    """The card of one version of a production model."""
    card = {
        "files": {"a": version},
        "pixel_range": "",
        "data": {"normals": 12, "anomalies": 3, "digest": "d" * 16},
        "learned": [{}],
        "revision": "abc123",
    }
    file = root / "versions/synthetic/production/model" / version / "model/card.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(card | {"backbones": [{"weights_digest": "e" * 64}]} | changes))
    return file


def test_start_up_does_not_import_torch():
    program = (
        "import sys; from mpfm_kedro.pipeline_registry import register_pipelines; register_pipelines(); "
        "import mpfm_kedro.cli, mpfm_kedro.hooks; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "parameters", "message", "slow"),
    [
        ("run --pipelines=fit", "n_anomalies=x", "'n_anomalies' = 'x'", SLOW | {"matplotlib"}),
        ("run --pipelines=general_setting", "dataset=aitex", "raw/aitex is missing", SLOW),
        ("run --pipelines=fit", "dataset=folder", "raw does not exist", SLOW),
        ("run --pipelines=fit", "features.weights_file=nowhere.safetensors", "nowhere.safetensors", SLOW),
        ("run --pipelines=predict", "device=cpu", "'images' is missing", SLOW),
        ("run --pipelines=predict", "images=pyproject.toml", "No model in", SLOW),
        ("run --pipelines=export", "images=nowhere", "'images' = ", SLOW),
        ("run --pipelines=learn", "images=nowhere,label=anomaly", "'images' = ", SLOW),
        ("app", "device=cpu", "No model in", SLOW),
    ],
)
def test_input_errors_come_before_slow_imports(
    arguments: str, parameters: str, message: str, slow: set[str], tmp_path: Path
):
    roots = f"data_root={tmp_path / 'raw'},output_root={tmp_path / 'out'}"
    program = (
        "import sys; from click.testing import CliRunner; from kedro.framework.cli.cli import KedroCLI; "
        "from pathlib import Path; found = CliRunner().invoke(KedroCLI(Path.cwd()), sys.argv[1:]); "
        "print(found.exit_code, *sys.modules, found.output, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments.split(), f"--params={parameters},{roots}"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("1\n") and message in done.stdout, done.stdout[-2000:] + done.stderr
    assert not slow & set(done.stdout.splitlines())


def test_the_names_of_pipelines_are_those_that_are_registered():
    assert {*NAMES, "__default__"} == register_pipelines().keys()


def test_versions_are_listed_with_their_origin(tmp_path: Path):
    keep(tmp_path, VERSION)
    keep(tmp_path, "2026-01-01T00.00.00.000Z", revision="older")
    keep(tmp_path, "2026-01-02T00.00.00.000Z").write_text("{")
    _, first, second, _ = call("versions", "list", "--output-root", str(tmp_path)).splitlines()
    assert "older" in first
    assert {VERSION, "12", "3", "1", "abc123", "d" * 12, "e" * 12} <= set(second.split())


def test_the_present_version_has_a_star(tmp_path: Path):
    card = keep(tmp_path, VERSION)
    keep(tmp_path, "2026-01-03T00.00.00.000Z")
    present = tmp_path / "06_models/synthetic/production/model/card.json"
    present.parent.mkdir(parents=True)
    present.write_text(card.read_text())
    lines = call("versions", "list", "--output-root", str(tmp_path)).splitlines()
    assert [VERSION in line for line in lines if line.split()[:2] == ["*", "synthetic"]] == [True]


@pytest.mark.parametrize(("typed", "problem"), [("yesterday", "does not exist"), ("2026", "is not unique")])
def test_a_version_that_is_not_there_is_named_with_the_known_ones(tmp_path: Path, typed: str, problem: str):
    keep(tmp_path, VERSION)
    keep(tmp_path, "2026-01-01T00.00.00.000Z")
    given = ("synthetic", typed, "--output-root", str(tmp_path))
    shown = call("versions", "use", *given, fails=True)
    assert typed in shown and problem in shown and VERSION in shown


def test_fetched_images_of_a_package_are_copied(tmp_path: Path):
    call("fetch", "data", "elpv", "--data-root", str(tmp_path))
    assert (tmp_path / "elpv/labels.csv").is_file()
    assert len(list((tmp_path / "elpv/images").iterdir())) == 2624


@pytest.mark.parametrize(("dataset", "message"), [("synthetik", "synthetic"), ("aitex", "aitex")])
def test_images_that_are_nowhere_are_an_error(dataset: str, message: str, tmp_path: Path):
    assert message in call("fetch", "data", dataset, "--data-root", str(tmp_path), fails=True)
