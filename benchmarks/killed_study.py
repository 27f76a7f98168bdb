"""A study over real images, once on this machine alone and once on Dask with a worker killed: ``make benchmark-study``.

    PYTHONPATH=tests python benchmarks/killed_study.py --data-root /data

ELPV, BrainMRI and HeadCT, as far as they are there. The two studies share nothing but the raw images and the weights of
the backbone. Everything that they decide is compared bit by bit: features, models, scores, tables.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
from distributed import Client, LocalCluster, Worker
from tqdm import tqdm

from machine import published, write_page
from mpfm_kedro.configuration import input_path, project_root
from mpfm_kedro.protocol.fits import Task
from mpfm_kedro.provenance import code_revision
from study_comparison import compared, largest_difference

STUDY = {
    "settings": ["general", "hard"],
    "n_anomalies": [10, 1],
    "n_seeds": 2,
    "first_seed": 100,
    "methods": ["MPFM", "MPFM, no anomaly known", "Mahalanobis", "DevNet", "logistic regression"],
    "parameters": {"features": {"cutmix_views": 0}},  # none of these methods reads them
}
LOOK_SECONDS = 0.2


@dataclass
class Killing:
    """What was killed: the task, its key in Dask, the process, and when, in seconds since the epoch.

    Also the processes of the workers before and after the study, and what went wrong with the killing.
    """

    wanted: str
    began: float = field(default_factory=time.time)
    task: str = ""
    key: str = ""
    pid: int = 0
    moment: float = 0.0
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    error: str = ""


def study(folder: Path, given: argparse.Namespace, *more: str) -> float:
    """Run the study into a folder of its own; returns its seconds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    file = folder / "study.yml"
    file.write_text(json.dumps(STUDY | {"datasets": given.datasets.split(",")}), encoding="utf-8")
    data_root = input_path(given.data_root, project_root())
    params = ",".join([f"data_root={data_root}", f"output_root={folder / 'out'}", *more])
    params += f",image_size={given.image_size}" if given.image_size else ""
    command = ["kedro", "study", str(file), f"--env={given.env}", f"--params={params}"]
    began = time.monotonic()
    with (folder / "log.txt").open("wb") as log:
        code = subprocess.run(
            [sys.executable, "-m", *command], stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
    if code:
        raise SystemExit(f"The study ended with code {code}; see {folder / 'log.txt'}")
    return time.monotonic() - began


def undisturbed(folder: Path, given: argparse.Namespace) -> float:
    """The study on this machine alone; one that was finished by the same command and revision is used again."""
    record = folder.with_suffix(".json")
    about = {
        "study": STUDY,
        "datasets": given.datasets,
        "data_root": str(input_path(given.data_root, project_root())),
        "env": given.env,
        "image_size": given.image_size,
        "revision": code_revision(),
    }
    if record.is_file():
        known = json.loads(record.read_text())
        if known["about"] == about:
            return float(known["seconds"])
        record.unlink()
    seconds = study(folder, given)
    record.write_text(json.dumps({"about": about, "seconds": seconds}))
    return seconds


def computing(dask_worker: Worker) -> list[tuple[str, str, int]]:
    """Key and description of each fit and each scoring that a worker computes at this moment, and its process."""
    tasks = [(str(one.key), part) for one in dask_worker.state.executing for part in one.run_spec.args]
    return [(key, str(task), os.getpid()) for key, task in tasks if isinstance(task, Task)]


def try_to_kill(client: Client, killing: Killing) -> None:
    """What a thread does; its error is kept."""
    try:
        kill_one(client, killing)
    except Exception as error:  # of Dask, or of a worker: the study goes on, and is told at its end
        killing.error = f"{type(error).__name__}: {error}"


def kill_one(client: Client, killing: Killing) -> None:
    """Kill the first worker that is seen twice at one wanted task: it is in the middle of it."""
    seen: set[str] = set()
    while not killing.pid:
        time.sleep(LOOK_SECONDS)
        for key, task, pid in (found for tasks in client.run(computing).values() for found in tasks):
            if killing.wanted in task and key in seen and not killing.pid:
                os.kill(pid, signal.SIGKILL)
                killing.task, killing.key, killing.pid, killing.moment = task, key, pid, time.time()
            seen.add(key)


def study_with_a_kill(folder: Path, given: argparse.Namespace) -> tuple[float, Killing, list[str]]:
    """Run the study on two workers, one of which is killed; its seconds, what was killed, and what Dask did."""
    killing = Killing(given.kill_at)
    with (
        LocalCluster(2, threads_per_worker=1, dashboard_address=None, protocol="tcp://") as cluster,
        Client(cluster) as client,
    ):
        killing.before = processes(client)
        threading.Thread(target=try_to_kill, args=(client, killing), daemon=True).start()
        seconds = study(folder, given, f"compute.dask_scheduler={cluster.scheduler_address}")
        if not killing.pid:
            reason = killing.error or f"none was seen twice at a task with {given.kill_at!r} in its name"
            raise SystemExit(f"No worker was killed: {reason}")
        killing.after = processes(client)
        story = cluster.scheduler.story(killing.key)
    if not any((one.start, one.finish) == ("processing", "released") for one in story):
        raise SystemExit(f"{killing.task} was done before its worker was killed; start again")
    return seconds, killing, told(story, killing.moment)


def processes(client: Client) -> list[int]:
    """The processes of the workers."""
    return sorted(client.run(os.getpid).values())


def told(story: Any, moment: float) -> list[str]:
    """What became of a task, in seconds before and after its worker was killed."""
    return [f"{one.timestamp - moment:+.1f} s: {one.start} → {one.finish}" for one in story]


def report(
    given: argparse.Namespace, seconds: tuple[float, float], killing: Killing, story: list[str]
) -> tuple[str, bool]:
    """The report as Markdown, and whether both studies are the same."""
    here, there = given.folder / "here/out", given.folder / "there/out"
    trials, scores, largest = largest_difference(here, there)
    counts, different = compared(here, there)
    plan = pd.read_csv(next(here.glob("08_reporting/study/*/plan.csv")), keep_default_na=False)
    datasets = [f"{name} {status}" for name, status in zip(plan["name"], plan["status"], strict=True)]
    same = not different and largest == 0
    lines = [
        "# A study with a killed worker",
        "",
        f"Made by `make benchmark-study` on {date.today().isoformat()}, revision {code_revision()}.",
        "The same study, once with worker processes of this machine and once on a Dask cluster of two workers, one of",
        "which was ended by SIGKILL while it computed. They share raw images and weights, nothing else.",
        "",
        "| | |",
        "|---|---|",
        f"| datasets | {', '.join(datasets)} |",
        f"| methods | {'; '.join(STUDY['methods'])} |",
        "| settings, M, seeds | general and hard, 10 and 1, 100 and 101 |",
        f"| image size | {given.image_size or 'as chosen for each dataset'} |",
        f"| trials | {trials} |",
        f"| killed | process {killing.pid}, {killing.moment - killing.began:.0f} s after the start |",
        f"| it computed | {killing.task} |",
        f"| what Dask did with the task | {'; '.join(story)} |",
        f"| processes of the workers | {listed(killing.before)} before the study, {listed(killing.after)} after it |",
        f"| time without Dask | {tqdm.format_interval(seconds[0])} |",
        f"| time on Dask, with the kill | {tqdm.format_interval(seconds[1])} |",
        f"| compared bit by bit | {', '.join(f'{count} {kind}' for kind, count in counts.items())} |",
        f"| different | {', '.join(different) or 'none'} |",
        f"| largest difference of {scores:,} scores and their parts | {largest:g} |",
    ]
    return "\n".join(lines), same


def listed(numbers: list[int]) -> str:
    """Numbers in a sentence."""
    return " and ".join(map(str, numbers))


def main() -> None:
    """Run both studies, compare them and write the report; the exit code is 1 where they differ."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--datasets", default="elpv,brainmri,headct", help="one that is not there is skipped")
    parser.add_argument("--data-root", default="data/01_raw", help="where brainmri and headct are")
    parser.add_argument("--env", default="base", help="test, with --datasets synthetic, tries this in a minute")
    parser.add_argument("--image-size", type=int, default=0, help="fewer pixels for a trial; 0: what fits the images")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "mpfm_killed_study")
    parser.add_argument("--kill-at", default="training of", help="part of the description of the task to kill")
    parser.add_argument("--report", type=Path, help="file of the page; without it, that of a trial is only printed")
    given = parser.parse_args()
    alone = undisturbed(given.folder / "here", given)
    print(f"Without Dask: {alone:.0f} s", flush=True)
    on_dask, killing, story = study_with_a_kill(given.folder / "there", given)
    text, same = report(given, (alone, on_dask), killing, story)
    page = given.report or published(parser, given, "killed_study.md", "datasets", "env", "image_size")
    write_page(page, text)
    sys.exit(not same)


if __name__ == "__main__":
    main()
