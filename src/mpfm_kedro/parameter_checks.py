"""Parameters as they were given, checked as a whole: an error names each wrong one and the nearest valid name."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
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
        values = parameters.setdefault(group, {})
        if isinstance(values, dict):
            if name in values:
                raise InputError(f"Unknown parameter '{target}': did you mean '{source}'?")
            values[name] = reduce(_get, source.split("."), parameters)
    return parameters


def _get(group: Any, name: str) -> Any:
    return group.get(name) if isinstance(group, dict) else None


def check_parameters(values: Mapping[str, Any]) -> Parameters:
    """Validate all parameters at once; an error names each wrong one and the nearest valid name."""
    try:
        return Parameters.model_validate(values if "protocol" in values else complete(copy.deepcopy(dict(values))))
    except ValidationError as error:
        problems = [(_dotted(problem["loc"]), problem) for problem in error.errors()]
        typed = [item for item in problems if item[0] not in COPIES]  # those are named by their sources
        raise InputError("\n".join(_explain(*item) for item in typed or problems)) from None


def _dotted(location: tuple[int | str, ...]) -> str:
    """Group and name of a parameter, without the position in a list."""
    return ".".join(part for part in location if isinstance(part, str))


def _explain(name: str, problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        *groups, last = problem["loc"]  # a name may have dots
        others = {dotted.rpartition(".")[2]: dotted for dotted in reversed([*_dotted_names(Parameters)])}
        same = {field: _dotted((*groups, field)) for field in _group_at(groups).model_fields}
        near = [last] if last in others else get_close_matches(last, same, 1) or get_close_matches(last, others, 1)
        hint = f"did you mean '{(others | same)[near[0]]}'?" if near else f"known names: {', '.join(sorted(same))}"
        return f"Unknown parameter '{name}': {hint}"
    if problem["type"] == "missing":
        return f"Parameter '{name}' is missing from the configuration"
    if problem["type"] == "model_type":
        copied = (source for target, source in COPIES.items() if target.startswith(f"{name}."))
        first = next(chain(_dotted_names(_group_at(name.split(".")), f"{name}."), copied))
        return f"Parameter '{name}' = {problem['input']!r}: is a section; set one of its keys, for example {first}"
    return f"Parameter '{name}' = {problem['input']!r}: {problem['msg'].removeprefix('Value error, ')}"


def _dotted_names(group: type[Group], prefix: str = "") -> Iterator[str]:
    """The names of all parameters that users type, those of groups with a dot."""
    for name, field in group.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Group):
            yield from _dotted_names(field.annotation, f"{prefix}{name}.")
        elif f"{prefix}{name}" not in COPIES:
            yield f"{prefix}{name}"


def _group_at(names: Sequence[str]) -> type[Group]:
    group: Any = Parameters
    for part in names:
        group = group.model_fields[part].annotation
    return group
