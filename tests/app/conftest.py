"""The page of a small model: answered in the process, and by a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from mpfm_kedro.app.server import AppState, create_app
from mpfm_kedro.inspection.inspector import Inspector
from serving import make_state, serving

HERE = "http://127.0.0.1:8040"


@pytest.fixture(scope="session")
def raw(fitted_project: Path) -> Path:
    """Folders good, spot and scratch with images."""
    return fitted_project / "raw/synthetic"


@pytest.fixture
def state(inspector: Inspector, raw: Path, fitted_project: Path, tmp_path: Path) -> AppState:
    """With an empty page, whose folder is that of the raw images."""
    return make_state(inspector, raw, fitted_project, tmp_path)


@dataclass
class Visitor:
    """A browser that has loaded the page."""

    client: TestClient
    headers: dict[str, str]

    def get(self, address: str, **headers: str):
        return self.client.get(address, headers=headers)

    def post(self, address: str, content=None, **headers: str):
        return self.client.post(address, content=content, headers=self.headers | headers)

    def upload(self, name: str, content) -> str:
        """The key of an image that is taken."""
        answer = self.post(f"/images?name={name}", content)
        assert answer.status_code == 201, answer.text
        return answer.text


@pytest.fixture
def visitor(state: AppState) -> Iterator[Visitor]:
    with TestClient(create_app(state), base_url=HERE) as client:
        token = re.search("name='token' content='([^']+)'", client.get("/").text)
        assert token
        yield Visitor(client, {"Origin": HERE, "X-Token": token[1]})


@pytest.fixture
def served(state: AppState) -> Iterator[str]:
    """The address of a real server."""
    with serving(state) as address:
        yield address
