"""Learning from the page: the commands of the project, run one at a time, with their output for people to see."""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from typing import Self

from mpfm_kedro.configuration import project_loader, project_root
from mpfm_kedro.errors import InputError
from mpfm_kedro.inspection.model import model_digest, read_card
from mpfm_kedro.inspection.versions import restore_command, versions_by_digest

LINES = 40  # of a command's output that are shown: all that learn prints at its end
SECONDS_TO_END = 10.0


@dataclass(frozen=True)
class Project:
    """The Kedro project that a model belongs to."""

    params: str  # as they are typed for ``kedro run --params``
    env: str | None
    dataset: str  # of the model
    output_root: Path  # where results are
    model: Path  # the folder of the production model
    versions: Path  # the folder of its versions
    to_learn: Path  # the folder of marked images

    @classmethod
    def of(cls, params: str, parsed: dict[str, object], env: str | None) -> Self:
        """The project around the current folder; ``parsed`` are the parsed ``params``."""
        loader, root = project_loader(env, **parsed), project_root()
        parameters, catalog = loader["parameters"], loader["catalog"]
        model, versions, log = (
            root / catalog[name]["filepath"]
            for name in ("production_model", "production_model_version", "prediction_log")
        )
        output_root = Path(parameters["output_root"])
        return cls(params, env, str(parameters["name"]), output_root, model, versions, log.with_name("to_learn"))

    def learn(self, label: str, images: Path) -> list[str]:
        """The command that learns the images of a folder."""
        params = ",".join(filter(None, [self.params, f"images={images}", f"label={label}"]))
        return [*self._kedro("run"), "--pipelines=learn", f"--params={params}"]

    def go_back(self, version: str) -> list[str]:
        """The command that restores an earlier version of the model."""
        return self._kedro(*restore_command(self.dataset, version, self.output_root)[1:])

    def earlier_version(self) -> str | None:
        """The version before the present model, if there is one."""
        versions = versions_by_digest(self.versions)
        earlier = dict(zip(versions, [None, *versions.values()], strict=False))
        return earlier.get(model_digest(read_card(self.model)))

    def _kedro(self, *command: str) -> list[str]:
        environment = [f"--env={self.env}"] if self.env else []
        return [sys.executable, "-m", "kedro", *command, *environment]


class Job:
    """Work in the background, such as commands; only one job is under way at a time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None
        self.name = ""
        self.state = ""  # running, done or failed
        self.lines: deque[str] = deque(maxlen=LINES)

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Start some work; an error if a job is under way."""
        if not self._lock.acquire(blocking=False):
            raise InputError(f"Please wait: '{self.name}' is under way")
        self.name, self.state = name, "running"
        self.lines.clear()
        Thread(target=self._run, args=(work,), daemon=True).start()

    def update(self, line: str) -> None:
        """Show the progress of a task, "task: progress", in place of its former line."""
        if self.lines and self.lines[-1].partition(":")[0] == line.partition(":")[0]:
            self.lines.pop()
        self.lines.append(line)

    def stop(self) -> None:
        """End the running command, as Ctrl-C would."""
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_END)
                return
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _run(self, work: Callable[[], None]) -> None:
        state = "failed"
        try:
            work()
            state = "done"
        except (InputError, OSError) as error:
            self.lines.append(str(error))
        finally:
            self.state = state
            self._lock.release()

    def execute(self, command: Sequence[str]) -> None:
        """Keep the lines that a command writes; an error if it fails."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # so that its own processes can be ended with it
        )
        with self._process as process:
            assert process.stdout is not None
            self.lines.extend(line.rstrip() for line in process.stdout if line.strip())
        if process.returncode:
            raise InputError(
                f"The command ended with exit code {process.returncode}, see its last lines; `kedro versions list` "
                "shows the models"
            )
