"""The commands that start the page: one clear line where they cannot."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpfm_kedro.app.__main__ import main
from mpfm_kedro.app.starting import listening
from mpfm_kedro.cli import cli
from mpfm_kedro.errors import InputError


def test_a_missing_model_names_the_command_that_makes_one(tmp_path: Path):
    typed = ["app", "--env=test", f"--params=output_root={tmp_path}", "--port=0"]
    for command, arguments in ((cli, typed), (main, [f"--model={tmp_path}", "--port=0"])):
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 1
        assert len(result.output.splitlines()) == 1 and "kedro run --pipelines=fit" in result.output


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path):
    result = CliRunner().invoke(main, [f"--model={tmp_path}", f"--images={tmp_path / 'nowhere'}"])
    assert result.exit_code == 1 and "nowhere" in result.output


def test_names_that_no_file_can_have_are_one_line(tmp_path: Path):
    for command, arguments in (
        (cli, ["app", "--env=test", f"--images={300 * 'a'}"]),
        (main, [f"--model={tmp_path}", f"--images={300 * 'a'}"]),
        (main, [f"--model={300 * 'a'}"]),
        (main, [f"--model={50 * ('a' * 99 + '/')}"]),
    ):
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 1 and len(result.output.splitlines()) == 1, result.exception
        assert "aaaa" in result.output and ("is not a folder" in result.output or "No model in" in result.output)


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_missing_package_is_one_line_with_the_extra_to_install(package: str, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "mpfm_kedro.app.server", raising=False)
    for command, arguments in ((cli, ["app", "--env=test"]), (main, [f"--model={tmp_path}"])):
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 1
        [line] = result.output.splitlines()
        assert line.endswith(f"The app needs the package {package}: pip install 'mpfm_kedro[app]'")


def test_it_listens_on_this_machine_alone_and_names_a_port_in_use():
    with listening(0) as own:
        address, port = own.getsockname()
        assert address == "127.0.0.1"
        with pytest.raises(InputError, match=f"Port {port} cannot be used .* --port"):
            listening(port)
        socket.create_connection((address, port)).close()


SLOW = """
import sys, time
from pathlib import Path
from mpfm_kedro.app.starting import serve
from mpfm_kedro.inspection import inspector

def load(model, device):
    print("loading", flush=True)
    time.sleep(60)

inspector.Inspector.load = load
serve(Path(sys.argv[1]), None, 0, "cpu")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_nothing_stays_where_it_ends_while_it_loads(model_folder: Path, tmp_path: Path, name: str):
    command = ["env", "--default-signal", sys.executable, "-c", SLOW, str(model_folder)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == "loading\n"
        assert list(tmp_path.glob("mpfm_kedro-app-*"))
        process.send_signal(getattr(signal, name))
        assert process.wait(30) == 128 + signal.SIGTERM
    assert not list(tmp_path.glob("mpfm_kedro-app-*"))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_uploads_are_deleted_at_every_end(model_folder: Path, tmp_path: Path, name: str):
    command = [sys.executable, "-m", "mpfm_kedro.app", f"--model={model_folder}", "--port=0", "--device=cpu"]
    command = ["env", "--default-signal", *command]  # nohup makes its processes ignore SIGHUP
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[1]
        urllib.request.urlopen(address).close()  # it serves
        (uploads,) = tmp_path.glob("mpfm_kedro-app-*")
        (uploads / "upload").touch()
        process.send_signal(getattr(signal, name))
        process.wait(60)
    assert not list(tmp_path.glob("mpfm_kedro-app-*"))
