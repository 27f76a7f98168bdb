"""What a result was made by: the revision of the code and a digest of the method's files."""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path

from mpfm_kedro import __version__

PACKAGE = Path(__file__).parent


@cache
def code_digest() -> str:
    """Digest of the method's code; a cached result of other code is not taken up."""
    digest = hashlib.sha256()
    folders = ("model", "pipelines/prototypes", "pipelines/training")
    for file in sorted(file for folder in folders for file in (PACKAGE / folder).glob("*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


@cache
def code_revision() -> str:
    """The git revision of the project, or the version of the package outside of a checkout."""
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        answer = ""
    return answer or __version__
