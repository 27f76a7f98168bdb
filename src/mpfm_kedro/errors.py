"""Raised for invalid user input: one clear line."""

from collections.abc import Iterable
from difflib import get_close_matches

import click

try:
    from kedro.io.core import DatasetError
except ImportError:  # a trained model is used without Kedro

    class DatasetError(Exception):  # type: ignore[no-redef]
        """Stands for Kedro's."""


class InputError(click.ClickException, DatasetError, ValueError):
    """Something the user gave cannot be used; the message names it and says what is allowed.

    As a click exception it ends ``kedro run`` with one clear line and exit code 1; as a dataset error it passes
    through a dataset's ``load`` unchanged.
    """


def unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that does not exist, with the nearest one and all others."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return InputError(f"There is no {what} '{name}': {hint}There are: {', '.join(names)}")
