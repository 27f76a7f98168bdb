"""A production model of the synthetic images, fitted once, and a real browser (Debian's chromium)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from running import run

if "FUZZ_SHARE" not in os.environ:  # make fuzz tries other inputs each time
    settings.register_profile("equal", derandomize=True)
    settings.load_profile("equal")

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # some virtual machines claim AMX and have none

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no browser is found: install Debian's package chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def window(chromium: Any) -> Iterator[Any]:
    """A window in which no page may have an error."""
    errors: list[str] = []
    shown = chromium.new_page(viewport={"width": 1000, "height": 1100})
    shown.set_default_timeout(120_000)  # a busy machine takes its time
    shown.on("pageerror", lambda error: errors.append(str(error)))
    yield shown
    shown.close()
    assert not errors


@pytest.fixture(scope="session")
def fitted_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with raw images (raw) and all that the pipeline fit makes of them (out)."""
    folder = tmp_path_factory.mktemp("fitted")
    run("fit", folder)
    return folder


@pytest.fixture(scope="session")
def model_folder(fitted_project: Path) -> Path:
    """The folder of the production model, not to be changed."""
    return fitted_project / "out/06_models/synthetic/production/model"


@pytest.fixture(scope="session")
def inspector(model_folder: Path) -> Any:
    from mpfm_kedro.inspection.inspector import Inspector

    return Inspector.load(model_folder, "cpu")


@pytest.fixture
def own_model_folder(model_folder: Path, tmp_path: Path) -> Path:
    """A copy of the model folder."""
    return Path(shutil.copytree(model_folder, tmp_path / "model"))
