"""What decides a number besides parameters and data: versions of the libraries, and the revision for people to read."""

import hashlib
import json
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mpfm_kedro import __version__

PACKAGE = Path(__file__).parent
LIBRARIES = ("numpy", "pillow", "scikit-learn", "scipy", "torch", "torchvision")


def key_digest(key: Any) -> str:
    """A short digest of anything that JSON can hold."""
    content = json.dumps(key, sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


@cache
def library_versions() -> dict[str, str]:
    """Versions of the libraries that decide numbers."""
    return {name: version(name) for name in LIBRARIES}


@cache
def code_revision() -> str:
    """The git revision of the project, or the version of the package outside of a checkout."""
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        answer = ""
    return answer or __version__
