"""Entry point of the installed package: ``mpfm-kedro`` is ``kedro run`` without the project folder."""

import sys
from pathlib import Path
from typing import Any

from kedro.framework.cli.utils import find_run_command
from kedro.framework.project import configure_project


def main(*args: Any, **kwargs: Any) -> Any:
    """Run a pipeline of this package."""
    package_name = Path(__file__).parent.name
    configure_project(package_name)
    kwargs["standalone_mode"] = not hasattr(sys, "ps1")
    return find_run_command(package_name)(*args, **kwargs)


if __name__ == "__main__":
    main()
