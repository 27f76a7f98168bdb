"""Parameters as they were given, checked as a whole: an error names each wrong one and the nearest valid name."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from pydantic import ValidationError

from mpfm_kedro.errors import InputError
from mpfm_kedro.parameters import COPIES, Group, Parameters


def text_parameters() -> set[str]:
    """The names of parameters outside of groups that are texts: what is typed for them is no number."""
    texts = (str, str | None)
    return {name for name, field in Parameters.model_fields.items() if field.annotation in texts}


def complete(parameters: dict[str, Any]) -> dict[str, Any]:
    """Copy parameters that users type without a group into the groups that nodes read (``COPIES``)."""
    for target, source in COPIES.items():
        group, name = target.split(".")
        place = parameters.setdefault(group, {})
        if isinstance(place, dict):
            if name in place:
                raise InputError(f"Unknown parameter '{target}': did you mean '{source}'?")
            value: Any = parameters
            for part in source.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            place[name] = value
    return parameters


def check_parameters(values: Mapping[str, Any]) -> Parameters:
    """Validate all parameters at once; an error names each wrong one and the nearest valid name."""
    try:
        return Parameters.model_validate(values if "protocol" in values else complete(copy.deepcopy(dict(values))))
    except ValidationError as error:
        found = error.errors()
        problems = [problem for problem in found if _name(problem) not in COPIES] or found  # those of their sources
        raise InputError("\n".join(_explain(problem) for problem in problems)) from None


def _name(problem: Any) -> str:
    """The dotted name of a parameter."""
    return ".".join(_location(problem))


def _location(problem: Any) -> list[str]:
    """Group and name of a parameter, without the place in a list."""
    return [part for part in problem["loc"] if isinstance(part, str)]


def _explain(problem: Any) -> str:
    name, location = _name(problem), _location(problem)
    if problem["type"] == "extra_forbidden":
        *groups, last = location
        beside = {".".join([*groups, field]): field for field in _group_at(groups).model_fields}
        anywhere = {dotted: dotted.rpartition(".")[2] for dotted in _dotted_names()}
        same = next((dotted for dotted, own in anywhere.items() if own == last), None)
        near = same or _nearest(last, beside) or _nearest(last, anywhere)
        hint = f"did you mean '{near}'?" if near else f"known names: {', '.join(sorted(beside.values()))}"
        return f"Unknown parameter '{name}': {hint}"
    if problem["type"] == "missing":
        return f"Parameter '{name}' is missing from the configuration"
    if problem["type"] == "model_type":
        copied = (source for target, source in COPIES.items() if target.startswith(f"{name}."))
        first = next(chain(_dotted_names(_group_at(location), f"{name}."), copied))
        return f"Parameter '{name}' = {problem['input']!r}: is a section; set one of its keys, for example {first}"
    return f"Parameter '{name}' = {problem['input']!r}: {problem['msg'].removeprefix('Value error, ')}"


def _dotted_names(group: type[Group] | None = None, prefix: str = "") -> Iterator[str]:
    """The names of all parameters, those of groups with a dot."""
    for name, field in (group or Parameters).model_fields.items():
        annotation = field.annotation
        if f"{prefix}{name}" in COPIES or name == "protocol":
            continue
        if isinstance(annotation, type) and issubclass(annotation, Group):
            yield from _dotted_names(annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _nearest(name: str, known: Mapping[str, str]) -> str | None:
    """The dotted name whose last part is most like ``name``, if any is."""
    near = difflib.get_close_matches(name, known.values(), n=1)
    return next((dotted for dotted, last in known.items() if near and last == near[0]), None)


def _group_at(location: list[str]) -> type[Group]:
    group: type[Group] = Parameters
    for part in location:
        annotation = group.model_fields[part].annotation
        assert isinstance(annotation, type)
        group = annotation
    return group
