"""Origins of weights: what files and wheels hold, what the network answers, and what is never run."""

import hashlib
import io
import os
import pickle
import socket
import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from mpfm_kedro.backbones import origins
from mpfm_kedro.backbones.networks import bare_network
from mpfm_kedro.backbones.origins import KNOWN, StateDictUnpickler, read_tensors
from mpfm_kedro.backbones.weights import digest
from mpfm_kedro.errors import InputError

MOBILENET = "mobilenet_v2"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A web server on this machine that serves ``tmp_path``."""
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


class TestOrigins:
    @pytest.mark.parametrize("name", KNOWN)
    def test_packages_hold_the_known_weights(self, fetched: Path, tmp_path: Path, name: str) -> None:
        file = next((fetched / name / "wheel").glob("*.whl"))
        tensors = origins.read_wheel(KNOWN[name], file, tmp_path)
        assert digest(tensors) == KNOWN[name].digest
        bare_network(name).load_state_dict(tensors, strict=True, assign=True)

    def test_a_wheel_with_another_hash_is_not_read(self, tmp_path: Path) -> None:
        file = tmp_path / "other.whl"
        file.write_bytes(b"anything")
        with pytest.raises(InputError, match=r"other.whl has sha256 .*, expected is 9f118f8b"):
            origins.read_wheel(KNOWN[MOBILENET], file, tmp_path)

    def test_torchvisions_file_in_the_cache_of_torch(
        self, pth: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / pth.name).symlink_to(pth)
        tensors, source = origins.from_torchvision(MOBILENET, tmp_path)
        assert source.endswith(pth.name)
        assert digest(tensors) == KNOWN[MOBILENET].digest

    def test_download_is_checked_and_what_fails_names_the_address(self, server: str, tmp_path: Path) -> None:
        content = os.urandom(3_000_000)
        (tmp_path / "there").write_bytes(content)
        origins.download(f"{server}/there", tmp_path / "here", hashlib.sha256(content).hexdigest()[:8])
        assert (tmp_path / "here").read_bytes() == content
        for address, message in (
            (f"{server}/absent", "/absent: HTTP Error 404"),
            ("http://no-such-host.invalid/x", "http://no-such-host.invalid/x: "),
            (f"{server}/there", r"/there: invalid hash value \(expected \"b0353104\""),
        ):
            with pytest.raises(InputError, match=message):
                origins.download(address, tmp_path / "other", "b0353104")
            assert not (tmp_path / "other").exists()
        assert socket.getdefaulttimeout() is None


class TestReading:
    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("own.onnx", torch.ones(2), r"read from .pth, .pt and .safetensors"),
            ("absent.pth", None, "Cannot read weights from .*absent.pth: .*No such file"),
            ("absent.safetensors", None, "Cannot read weights from .*absent.safetensors: No such file"),
            ("tensor.pth", torch.ones(2), "holds a Tensor, expected is a state dict"),
            ("checkpoint.pth", {"epoch": 3, "model": {}}, "not a plain state dict; non-tensor entries: epoch, model"),
            ("code.pth", Path("x"), r"Cannot read weights from .*code.pth: it asks for pathlib\..* may run any code"),
        ],
    )
    def test_what_cannot_be_read_says_why(self, tmp_path: Path, name: str, content: object, message: str) -> None:
        if content is not None:
            torch.save(content, tmp_path / name)
        with pytest.raises(InputError, match=message) as raised:
            read_tensors(tmp_path / name)
        assert "weights_only" not in raised.value.message, "torch's hint how to read it all the same"

    @pytest.mark.filterwarnings("error")
    def test_a_pickle_of_another_program_is_refused_without_a_warning(self, tmp_path: Path) -> None:
        (tmp_path / "other.pth").write_bytes(pickle.dumps({"a": print}, protocol=4))
        with pytest.raises(InputError, match="it is not a file with weights, or a damaged one"):
            read_tensors(tmp_path / "other.pth")


class TestUnpickler:
    def test_reads_a_bare_state_dict(self) -> None:
        state = OrderedDict(a=torch.arange(3.0), b=torch.ones(2, 2))
        read = StateDictUnpickler(io.BytesIO(pickle.dumps(state))).load()
        assert digest(read) == digest(state)

    @pytest.mark.parametrize("thing", [os.system, eval, Path("x"), torch.nn.Linear])
    def test_refuses_every_other_global(self, thing: object) -> None:
        with pytest.raises(InputError, match="not part of a state dict"):
            StateDictUnpickler(io.BytesIO(pickle.dumps({"a": thing}))).load()

    def test_storages_are_read_without_running_code(self) -> None:
        inner = io.BytesIO()
        torch.save(Path("x"), inner, _use_new_zipfile_serialization=False)

        class Storage:
            def __reduce__(self) -> tuple[object, tuple[bytes]]:
                return torch.storage._load_from_bytes, (inner.getvalue(),)

        with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
            StateDictUnpickler(io.BytesIO(pickle.dumps(Storage()))).load()
