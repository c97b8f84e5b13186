"""A notebook's parameters: read from its parameters cell as text, checked by name and
type before anything runs."""

import ast
import contextlib
import dataclasses
import difflib
import json
import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nccl_runbook.core.facts import Unusable

_TYPES = {"bool": bool, "int": int, "float": float, "str": str}
_TAKEN = {bool: (str,), int: (str,), float: (str, int), str: (int, float)}  # what a value may be given as
_SHELL_WORDS = ("command", "arm_a", "arm_b", "python", "over")
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One line ``name: wanted = default`` of a parameters cell."""

    wanted: type
    default: Any


def coerce(name: str, value: Any, wanted: type) -> Any:
    """The value as ``wanted`` (bool, int, float or str); Unusable if it does not convert."""
    if type(value) is wanted:
        return value
    with contextlib.suppress(ValueError, KeyError):
        if type(value) in _TAKEN[wanted]:
            return _TRUTH[value.lower()] if wanted is bool else wanted(value)
    raise Unusable(
        f"parameter {name}: {value!r} is not "
        + (
            "True or False"
            if wanted is bool
            else {int: "a whole number", float: "a number"}.get(wanted, "a text")
        )
    )


def check_range(name: str, value: Any) -> Any:
    """The value unchanged; Unusable for a number below its minimum (0, or 1), and for shell words
    whose quotes do not close."""
    try:
        shlex.split(value if name in _SHELL_WORDS and not os.path.isfile(value) else "")
    except ValueError as error:
        raise Unusable(
            f"parameter {name}: {value} cannot be split into words as a shell does ({error})"
        ) from error
    least = 1 if name in ("budget_s", "repeats") else 0
    if name == "port" and value > 65535:
        raise Unusable(f"parameter port: {value} is more than 65535")
    if type(value) in (int, float) and not value >= least:
        raise Unusable(f"parameter {name}: {value} is less than {least}")
    return value


def check_names(given: Iterable[str], known: Collection[str], what: str = "parameter") -> None:
    """Unusable for the first unknown name, with the nearest known one, or all of them."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1) or [n for n in known if name and name in n][:1]
            instead = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise Unusable(f"unknown {what} {name}: {instead}")


def read_cell(notebook: Path) -> dict[str, Parameter]:
    """Name -> Parameter, from the parameters cell of a notebook file; parsed, never executed.

    Unusable if the file is no notebook or the cell holds anything but annotated literals.
    """
    try:
        return dict(
            _read_line(node)
            for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
            if "parameters" in cell["metadata"].get("tags", [])
            for node in ast.parse("".join(cell["source"])).body
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SyntaxError) as error:
        raise Unusable(f"{notebook.name}: its parameters cannot be read ({error})") from error


def _read_line(node: ast.stmt) -> tuple[str, Parameter]:
    if not (
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Name)
        and node.value
    ):
        raise ValueError(f"line {node.lineno} is not of the form name: type = literal")
    if node.annotation.id not in _TYPES:
        raise ValueError(
            f"line {node.lineno} is annotated {node.annotation.id}, not one of {', '.join(_TYPES)}"
        )
    return node.target.id, Parameter(_TYPES[node.annotation.id], ast.literal_eval(node.value))


def check_given(
    given: Sequence[tuple[str, str]], declared: Mapping[str, Mapping[str, Parameter]]
) -> dict[str, dict[str, Any]]:
    """Notebook -> the values among ``given`` that it declares, converted. Unusable for a name that no
    notebook declares, and as in coerce and check_range."""
    check_names((name for name, _ in given), dict.fromkeys(n for known in declared.values() for n in known))
    return {
        notebook: {
            name: check_range(name, coerce(name, value, known[name].wanted))
            for name, value in given
            if name in known
        }
        for notebook, known in declared.items()
    }
