"""Marks, and learning with the real commands: one at a time, and back again."""

from __future__ import annotations

import errno
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image, ImageDraw

from mpfm_kedro.app.learning import Job, Project
from mpfm_kedro.app.server import AppState, create_app
from mpfm_kedro.app.session import Session
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.inspector import Inspector
from mpfm_kedro.inspection.model import model_digest, read_card


def wait(job: Job) -> str:
    while job.state == "running":
        time.sleep(0.05)
    return job.state


def program(job: Job, *texts: str):
    return lambda: [job.execute([sys.executable, "-c", text]) for text in texts]


def test_a_mark_is_replaced_and_undone(visitor, state, raw):
    key = visitor.upload("image 1.png", (raw / "good/000.png").read_bytes())
    assert "It is a defect" in visitor.get("/results").text
    for label in ("normal", "anomaly"):
        assert visitor.post(f"/images/{key}/mark?label={label}").status_code == 200
        assert state.to_learn.labels() == {key: label}
    (file,) = (state.project.to_learn / "anomaly").iterdir()
    assert file.name == f"{key}-image_1.png" and file.read_bytes() == (raw / "good/000.png").read_bytes()
    assert "Marked as a missed defect" in visitor.get("/results").text
    assert "image_1.png, a missed defect" in visitor.get("/learning").text
    assert visitor.post(f"/images/{key}/unmark").status_code == 200
    assert not state.to_learn.labels() and not list((state.project.to_learn / "anomaly").iterdir())


def test_marks_that_are_set_while_a_run_learns_stay(visitor, state, raw, monkeypatch):
    """The run is a program that waits; it gets the images that were marked at its start."""
    waits = "import pathlib, sys, time; print(sorted(p.name for p in pathlib.Path(sys.argv[1]).iterdir()), flush=True)"
    waits += "\nwhile not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.05)"
    go = state.project.to_learn.with_name("go")
    monkeypatch.setattr(Project, "learn", lambda _, label, images: [sys.executable, "-c", waits, str(images), str(go)])
    monkeypatch.setattr(AppState, "_reload", lambda _: None)
    first, second = (visitor.upload(f"{i}.png", (raw / f"good/00{i}.png").read_bytes()) for i in range(2))
    visitor.post(f"/images/{first}/mark?label=anomaly")
    assert visitor.post("/learn").status_code == 202
    while not state.job.lines:
        time.sleep(0.05)
    assert first in state.job.lines[0] and second not in state.job.lines[0]
    visitor.post(f"/images/{second}/mark?label=anomaly")
    assert "under way" in visitor.post("/learn").text
    go.touch()
    assert wait(state.job) == "done"
    assert state.to_learn.labels() == {second: "anomaly"}


def test_a_full_disk_is_said_and_no_copy_stays(visitor, state, raw, monkeypatch):
    """The copy of the second label does not fit."""
    for number, label in enumerate(["normal", "anomaly"]):
        key = visitor.upload(f"{number}.png", (raw / f"good/00{number}.png").read_bytes())
        visitor.post(f"/images/{key}/mark?label={label}")
    copy, copied = shutil.copyfile, []

    def fill(source, target):
        copied.append(copy(source, target))
        if len(copied) == 2:
            raise OSError(errno.ENOSPC, "full", str(source), None, str(target))

    monkeypatch.setattr(shutil, "copyfile", fill)
    assert visitor.post("/learn").status_code == 202
    assert wait(state.job) == "failed" and len(copied) == 2
    (line,) = state.job.lines
    assert re.search(r"Cannot write .*/learning/\w+: No space left on device; it needs .* are free$", line)
    assert line.replace("'", "&#39;") in visitor.get("/learning").text
    assert not [path for path in state.project.to_learn.rglob("*") if "learning" in str(path)]
    assert sorted(state.to_learn.labels().values()) == ["anomaly", "normal"]


def test_an_error_of_the_system_is_said():
    job = Job()
    job.start("Learning", lambda: Path("/nowhere").read_bytes())
    assert wait(job) == "failed" and "No such file or directory" in job.lines[-1]


def test_without_a_project_nothing_can_be_marked(state, raw):
    with TestClient(create_app(replace(state, project=None)), base_url="http://127.0.0.1") as client:
        token = re.search("name='token' content='([^']+)'", client.get("/").text)[1]
        headers = {"Origin": "http://127.0.0.1", "X-Token": token}
        key = client.post("/images?name=a.png", content=(raw / "good/000.png").read_bytes(), headers=headers).text
        assert "It is a defect" not in client.get("/results").text
        assert "kedro app" in client.post(f"/images/{key}/mark?label=anomaly", headers=headers).text


def test_one_job_at_a_time_and_its_output_is_shown():
    job = Job()
    job.start("First", program(job, "import time; print('began', flush=True); time.sleep(60)"))
    while not job.lines:
        time.sleep(0.05)
    assert list(job.lines) == ["began"]
    with pytest.raises(InputError, match="'First' is under way"):
        job.start("Second", lambda: None)
    job.stop()
    assert wait(job) == "failed" and "exit code" in job.lines[-1]
    job.start("Second", program(job, "print('second')"))
    assert wait(job) == "done" and list(job.lines) == ["second"]


def test_after_a_failure_no_further_step_is_made():
    job = Job()
    job.start("All", program(job, "raise SystemExit(3)", "print('further')"))
    assert wait(job) == "failed"
    assert "exit code 3" in job.lines[-1] and "further" not in job.lines


@pytest.fixture
def own_state(fitted_project, tmp_path) -> AppState:
    """A page of a project whose output may be changed."""
    out, files = tmp_path / "out", tmp_path / "files"
    shutil.copytree(fitted_project / "out", out)
    files.mkdir()
    params = {"data_root": str(fitted_project / "raw"), "output_root": str(out)}
    project = Project.of(",".join(f"{name}={value}" for name, value in params.items()), params, "test")
    return AppState(Session(Inspector.load(project.model, "cpu"), files), "cpu", None, project, Job())


def test_a_missed_defect_is_learned_and_unlearned(own_state, raw, tmp_path):
    """Through the real commands, on the synthetic images."""
    image = Image.open(raw / "good/001.png").convert("RGB")
    ImageDraw.Draw(image).rectangle([20, 20, 24, 24], fill=(140, 140, 140))
    image.save(tmp_path / "missed.png")
    state, session = own_state, own_state.session
    found = session.add("missed.png", (tmp_path / "missed.png").read_bytes())
    state.to_learn.add("anomaly", found.key, found.name, session.content(found.key))
    before = model_digest(read_card(state.project.model))

    state.learn()
    assert wait(state.job) == "done", list(state.job.lines)
    said = "\n".join(state.job.lines)
    assert all(part in said for part in ("Guarantee before", "earlier predictions", "AUC of the general setting"))
    card = session.inspector.card
    assert card["data"]["anomalies"] == 25 and card["learned"][0]["origin"] == "missed.png"
    assert not state.to_learn.labels()
    (again,) = session.images()
    assert again.before == (found.prediction.score, found.prediction.decision)
    assert again.prediction.score != found.prediction.score

    state.go_back()
    assert wait(state.job) == "done", list(state.job.lines)
    assert session.inspector.card["data"]["anomalies"] == 24
    assert model_digest(read_card(state.project.model)) == before
    (again,) = session.images()
    assert again.prediction.score == pytest.approx(found.prediction.score)
