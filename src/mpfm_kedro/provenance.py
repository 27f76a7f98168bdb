"""What a result was made by: the revision of the code and a digest of the files that matter to it."""

from __future__ import annotations

import hashlib
import re
import subprocess
from functools import cache
from pathlib import Path

from mpfm_kedro import __version__

PACKAGE = Path(__file__).parent
METHOD = ("model/*.py", "pipelines/prototypes/*.py", "pipelines/training/*.py")
BASELINES = ("baselines/*.py", "pipelines/training/run_data.py")
IMPORT = re.compile(r"^\s*from mpfm_kedro\.(model|baselines)(?:\.| import )(\w+)", re.MULTILINE)


@cache
def code_digest(patterns: tuple[str, ...]) -> str:
    """Digest of some of the package's files and of the modules that these import from model/ or baselines/.

    A cached result of other code is not taken up.
    """
    found: dict[str, bytes] = {}
    left = [file for pattern in patterns for file in PACKAGE.glob(pattern)]
    while left:
        file = left.pop()
        name = file.relative_to(PACKAGE).as_posix()
        if name not in found:
            found[name] = file.read_bytes()
            imported = [PACKAGE / folder / f"{module}.py" for folder, module in IMPORT.findall(found[name].decode())]
            left += [file for file in imported if file.is_file()]
    digest = hashlib.sha256()
    for name, code in sorted(found.items()):
        digest.update(name.encode() + code)
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
