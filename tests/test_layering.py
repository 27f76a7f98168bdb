"""Every module can be imported alone, and Kedro's start-up does not import torch."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import mpfm_kedro

MODULES = sorted(module.name for module in pkgutil.walk_packages(mpfm_kedro.__path__, "mpfm_kedro."))


def test_every_module_can_be_imported_alone():
    """In a process of its own, forked from one that has loaded third-party packages only."""
    program = f"""
import os, sys
import kedro.framework.session, kedro_datasets.pandas, matplotlib.figure, pandas, scipy.stats, sklearn.cluster, torch
failed = []
for module in {MODULES!r}:
    child = os.fork()
    if child == 0:
        try:
            __import__(module)
        except BaseException as error:
            print(module, type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(module)
sys.exit(", ".join(failed) or 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert len(MODULES) > 80
    assert done.returncode == 0, done.stdout + done.stderr


def test_start_up_does_not_import_torch():
    program = (
        "import sys; from mpfm_kedro.pipeline_registry import register_pipelines; register_pipelines(); "
        "import mpfm_kedro.cli, mpfm_kedro.hooks; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
