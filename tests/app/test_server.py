"""Who may ask, what is refused, and what the page says of images."""

from __future__ import annotations

import errno
import io
import os
import re
import socket
from pathlib import Path

import pytest
from PIL import Image

from fuzzing.seeds import array_that_claims, png_that_claims
from mpfm_kedro.app import server, session


def png(size=(40, 30), colour=(90, 90, 90)) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", size, colour).save(content, format="png")
    return content.getvalue()


def decisions(visitor, rate: float | None = None) -> list[str]:
    page = visitor.get("/results" + (f"?rate={rate}" if rate else "")).text
    return re.findall("<article data-decision='([a-z]+)'", page)


def test_an_image_gets_score_decision_heat_map_and_reasons(visitor, raw):
    key = visitor.upload("new spot.png", (raw / "spot/000.png").read_bytes())
    page = visitor.get("/results").text
    assert decisions(visitor) == ["defective"]
    assert "new spot.png" in page and "adds most" in page and "p-value" in page
    assert "er than any of 48 good images" in page
    for kind in ("picture", "overlay"):
        answer = visitor.get(f"/images/{key}/{kind}")
        assert answer.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(answer.content)).size == (48, 48)
    near = re.findall("src='(known/[0-9]+)'", page)
    assert len(near) == 5  # four normals and an anomaly
    assert all(visitor.get(f"/{address}").content.startswith(b"\xff\xd8") for address in near)


def test_another_rate_changes_decisions_without_a_new_prediction(visitor, state, raw):
    for file in sorted(raw.glob("good/*.png"))[:8]:
        visitor.upload(file.name, file.read_bytes())
    before = state.session.images()
    assert decisions(visitor, 0.01) == ["good"] * 8
    assert "defective" in decisions(visitor, 0.99)
    assert all(old is new for old, new in zip(before, state.session.images(), strict=True))


def test_names_are_escaped(visitor):
    visitor.upload("%3Cimg src=x onerror=alert(1)%3E'.png", png())
    page = visitor.get("/results").text
    assert "<img src=x" not in page and "&lt;img src=x onerror=alert(1)&gt;&#39;.png" in page


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.png", b"", "cannot be used"),
        ("a.png", b"no image", "not an image of"),
        ("cut.png", png((400, 400))[:200], "cannot be used"),
        ("bomb.png", png_that_claims(60_000, 60_000), "more pixels than the 50 megapixels that this page takes"),
        (
            "bomb.png",
            png_that_claims(8_000, 8_000),
            "8000 x 8000 pixels, more than the 50 megapixels that this page takes",
        ),
        ("bomb.npy", array_that_claims(100_000, 100_000), "more than the 50 megapixels that this page takes"),
        ("deep.npy", b"\x93NUMPY" + bytes(80), "cannot be used"),
        ("a.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n", "images end in"),
        ("eps.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "not an image of"),
        ("../../etc/passwd", b"x", "images end in"),
    ],
)
def test_what_is_no_image_or_a_bomb_is_refused_and_named(visitor, state, name, content, said):
    answer = visitor.post(f"/images?name={name}", content)
    assert answer.status_code == 422
    assert said in answer.text and "\n" not in answer.text
    assert not state.session.images()


@pytest.mark.parametrize("chunked", [False, True])
def test_an_upload_that_is_too_large_is_refused(visitor, state, monkeypatch, chunked):
    monkeypatch.setattr(server, "MAX_BYTES", 1000)
    content = (bytes(100) for _ in range(11)) if chunked else bytes(1001)  # parts have no length in advance
    answer = visitor.post("/images?name=a.png", content)
    assert answer.status_code == 413 and "larger than" in answer.text
    assert not state.session.images()


def test_the_page_is_full_at_some_point(visitor, state, monkeypatch):
    monkeypatch.setattr(session, "MAX_IMAGES", 2)
    visitor.upload("a.png", png(colour=(1, 1, 1)))
    visitor.upload("b.png", png(colour=(2, 2, 2)))
    answer = visitor.post("/images?name=c.png", png(colour=(3, 3, 3)))
    assert answer.status_code == 413 and "room for 2 images" in answer.text
    assert visitor.get("/folder?path=good").status_code == 413
    assert visitor.post("/clear").status_code == 200
    assert not state.session.images() and not list(state.session._folder.iterdir())
    visitor.upload("c.png", png(colour=(3, 3, 3)))


def test_all_files_together_have_a_limit(visitor, monkeypatch):
    monkeypatch.setattr(session, "MAX_TOTAL", len(png()) + 10)
    visitor.upload("a.png", png())
    assert "clear it first" in visitor.post("/images?name=b.png", png(colour=(2, 2, 2))).text


def test_a_full_disk_is_said_and_leaves_nothing(visitor, state, monkeypatch):
    def fill(file: Path, content: bytes) -> int:
        with file.open("wb") as partial:
            partial.write(content[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", fill)
    answer = visitor.post("/images?name=a.png", png())
    assert answer.status_code == 422 and "No space left on device" in answer.text
    assert not state.session.images() and not list(state.session._folder.iterdir())


def test_a_folder_is_inspected_image_by_image(visitor, state):
    names = visitor.get("/folder?path=scratch").json()
    assert len(names) == 12 and names[0] == "scratch/000.png"
    for name in names[:2]:
        assert visitor.post(f"/folder?path={name}").status_code == 201
    assert {image.name for image in state.session.images()} == set(names[:2])


def test_a_cut_upload_leaves_nothing(served, state):
    port = int(served.rpartition(":")[2])
    page = _ask(port, f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n")
    token = re.search("name='token' content='([^']+)'", page)[1]
    head = f"POST /images?name=a.png HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: {served}\r\nX-Token: {token}\r\n"
    with socket.create_connection(("127.0.0.1", port)) as own:
        own.sendall(f"{head}Content-Length: {len(png())}\r\n\r\n".encode() + png()[:50])
    assert "<h1>" in _ask(port, f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n")
    assert not state.session.images() and not list(state.session._folder.iterdir())


def _ask(port: int, text: str) -> str:
    with socket.create_connection(("127.0.0.1", port)) as own:
        own.sendall(text.encode())
        return b"".join(iter(lambda: own.recv(65536), b"")).decode()


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org", "localhost.example.org:8040", "10.0.0.1", ""])
def test_another_name_of_this_machine_is_refused(visitor, host):
    assert visitor.get("/", Host=host).status_code == 403
    assert visitor.get("/results", Host=host).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://example.org"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"X-Token": "guessed"},
        {"X-Token": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # another port of this machine
    ],
)
@pytest.mark.parametrize("address", ["/images?name=a.png", "/folder?path=good/000.png", "/clear", "/learn", "/undo"])
def test_requests_of_other_sites_change_nothing(visitor, state, headers, address):
    answer = visitor.post(address, png(), **headers)
    assert answer.status_code == 403 and "Refused" in answer.text
    assert not state.session.images() and not state.job.state


def test_origin_and_token_must_be_there(visitor):
    for missing in ("Origin", "X-Token"):
        headers = {name: value for name, value in visitor.headers.items() if name != missing}
        assert visitor.client.post("/clear", headers=headers).status_code == 403


def test_answers_are_not_for_other_sites(visitor, raw):
    key = visitor.upload("a.png", (raw / "spot/000.png").read_bytes())
    for address in ("/results", f"/images/{key}/picture"):
        assert visitor.get(address, **{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}).status_code == 403
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert visitor.get("/", **link).status_code == 200
    headers = visitor.get("/").headers
    assert headers["cross-origin-resource-policy"] == "same-origin" and headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in headers["content-security-policy"]
