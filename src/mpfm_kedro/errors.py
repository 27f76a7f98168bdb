"""Raised for invalid user input: one clear line."""

from __future__ import annotations

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
