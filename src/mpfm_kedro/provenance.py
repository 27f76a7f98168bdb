"""What decides a number: the code that computes it, the libraries below that code, the revision for people to read.

Keys of everything that is cached are made of these. What changes a number changes the key; a comment, a docstring or a
log line does not.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mpfm_kedro import __version__

PACKAGE = Path(__file__).parent
NAME = PACKAGE.name
# They check, store, distribute or report what others compute.
WITHOUT_NUMBERS = (
    *("dask_engine", "errors", "files", "locks", "parallel", "parameters", "progress", "provenance"),
    *("backbones.store", "experiments.cache"),
)
LOGGERS = {"logger", "logging", "warnings"}
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
def code_digest(*modules: str) -> str:
    """Digest of the code of modules (``mpfm_kedro.…``) and of all modules of this package that they import."""
    return key_digest({name: _normalised(_file(name).read_text(encoding="utf-8")) for name in code_closure(*modules)})


def code_closure(*modules: str) -> list[str]:
    """Names of the modules and of all modules of this package that they import, directly or not."""
    excluded = {f"{NAME}.{name}" for name in WITHOUT_NUMBERS}
    found: set[str] = set()
    remaining = list(modules)
    while remaining:
        name = remaining.pop()
        if name in found or name in excluded:
            continue
        found.add(name)
        remaining += _imports(ast.parse(_file(name).read_text(encoding="utf-8")))
    return sorted(found)


def _imports(tree: ast.Module) -> list[str]:
    """The modules of this package that a module imports, wherever in it the statement is."""
    names = []
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.startswith(f"{NAME}.") and _file(name).is_file()]


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from _executed(node)


def _file(module: str) -> Path:
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


class _Normaliser(ast.NodeTransformer):
    """Removes what changes no number: docstrings, annotations of functions and log lines."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                kept = [statement for statement in statements if not _is_silent(statement)]
                setattr(node, name, kept or [ast.Pass()] * bool(statements))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.returns = None
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        return self.generic_visit(node)


def _is_silent(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring or a log line."""
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.Constant):
        return True
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in LOGGERS


def _normalised(code: str) -> str:
    return ast.dump(_Normaliser().visit(ast.parse(code)))


@cache
def code_revision() -> str:
    """The git revision of the project, or the version of the package outside of a checkout."""
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        answer = ""
    return answer or __version__
