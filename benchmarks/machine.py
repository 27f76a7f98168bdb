"""What a page of measured numbers says of the machine, and the page itself."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from mpfm_kedro.atomic import replacing
from mpfm_kedro.provenance import code_revision

CPU = Path("/proc/cpuinfo")
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_int8")  # that decide which kernels are used


def cpu_fields(text: str) -> dict[str, str]:
    """The fields of the first processor of /proc/cpuinfo."""
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def cpu_flags() -> list[str]:
    """Those of FLAGS that this processor has."""
    own = cpu_fields(CPU.read_text()).get("flags", "").split() if CPU.exists() else []
    return [flag for flag in FLAGS if flag in own]


def describe(*packages: str) -> str:
    """Date, revision, processor and versions, in one paragraph."""
    name = cpu_fields(CPU.read_text()).get("model name", "unknown") if CPU.exists() else "unknown"
    cores = len(os.sched_getaffinity(0))
    versions = ", ".join(f"{package} {installed_version(package)}" for package in packages)
    flags = ", ".join(cpu_flags()) or "none of " + ", ".join(FLAGS)
    return f"{date.today()}, revision {code_revision()}. CPU: {name}, {cores} cores ({flags}). {versions}."


def hardware() -> dict[str, int | bool]:
    """Cores, GB of memory, and whether torch has a GPU."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory": round(psutil.virtual_memory().total / 1e9),
        "gpu": torch.cuda.is_available(),
    }


def installed_version(package: str) -> str:
    """The version of a package, or that it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def as_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def published(parser: argparse.ArgumentParser, given: argparse.Namespace, page: str, *options: str) -> Path | None:
    """Where a page is published; nowhere if one of these options is not as by default: a try is only printed."""
    tried = any(getattr(given, name) != parser.get_default(name) for name in options)
    return None if tried else Path("docs/results") / page


def write_page(output: Path | None, *paragraphs: str) -> None:
    """Print a page, and write it if there is a file for it."""
    page = "\n\n".join(filter(None, paragraphs)) + "\n"
    print(page)
    if output is None:
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(output) as partial:
        partial.write_text(page, encoding="utf-8")
