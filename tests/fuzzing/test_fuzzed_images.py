"""Images, masks and uploads of anybody: pixels or a named problem, nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from fuzzing.conftest import inputs
from fuzzing.seeds import damaged_images
from mpfm_kedro.app.learning import Job
from mpfm_kedro.app.server import AppState, create_app
from mpfm_kedro.app.session import Session
from mpfm_kedro.errors import InputError
from mpfm_kedro.images.loading import ImageLoader
from mpfm_kedro.inspection.inspector import Inspector, read_image
from mpfm_kedro.sources.masks import check_mask_size, image_size, merge_masks
from production_models import made_model

pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow warns of every odd tag

PIXELS = 1_000_000
RANGES = st.sampled_from(["", "0..65535", "0..4095", "-1.5..2"])


@inputs(30_000)
@given(image=damaged_images())
def test_ingestion_names_the_problem_of_a_file(image, tmp_path, attempt):
    name, content = image
    (tmp_path / name).write_bytes(content)
    loader = ImageLoader("fuzz", tmp_path, PIXELS, tmp_path / "memory.parquet")

    def examine() -> None:
        (found,) = loader.examine_crops(name, [""])
        assert found["problem"] or (found["width"] * found["height"] <= PIXELS and math.isfinite(found["highest"]))

    attempt(examine)


@inputs(12_000)
@given(image=damaged_images(), pixel_range=RANGES)
def test_an_image_to_inspect_is_read_or_refused(image, pixel_range, tmp_path, attempt):
    name, content = image
    (tmp_path / name).write_bytes(content)
    attempt(lambda: read_image(tmp_path / name, pixel_range).convert("L"), InputError)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, dict[str, str]]]:
    """The page of a small model, and what a browser sends that has loaded it."""
    session = Session(Inspector(made_model(), "cpu"), tmp_path_factory.mktemp("files"))
    here = "http://127.0.0.1:8040"
    with TestClient(create_app(AppState(session, "cpu", None, None, Job())), base_url=here) as client:
        token = re.search("name='token' content='([^']+)'", client.get("/").text)
        assert token
        yield client, {"Origin": here, "X-Token": token[1]}


@inputs(6_000)
@given(image=damaged_images(), name=st.none() | st.text(max_size=40))
def test_the_page_answers_every_upload(image, name, page, attempt):
    client, headers = page
    address = f"/images?name={quote(name or image[0], safe='', errors='replace')}"

    def upload() -> None:
        answer = client.post(address, content=image[1], headers=headers)
        assert answer.status_code in (201, 413, 422), answer.text
        assert client.post("/clear", headers=headers).status_code == 200

    attempt(upload)


@inputs(12_000)
@given(image=damaged_images())
def test_a_mask_is_read_or_refused(image, tmp_path, attempt):
    file = Path(tmp_path / image[0])
    file.write_bytes(image[1])

    def mask() -> None:
        size = image_size(file)
        assert size is None or min(size) > 0
        check_mask_size(file, file, "Fuzz")
        assert merge_masks([file], "Fuzz").ndim == 2

    attempt(mask, InputError)
