"""The parameters of a notebook, and where its outputs go."""

import ast
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nccl_runbook.core.parameters import ParameterError, check_names, check_range, coerce
from nccl_runbook.logs.file import named


def outputs_root() -> Path:
    """``outputs/`` of the checkout that holds this package, else below the working directory."""
    checkout = Path(__file__).resolve().parents[2]
    return (checkout if (checkout / "notebooks").is_dir() else Path.cwd()) / "outputs"


def injected_cells(namespace: Mapping[str, Any]) -> list[str]:
    """Sources of the cells that papermill put into this notebook (papermill 2.7, parameterize.py)."""
    return [c for c in namespace.get("In", []) if isinstance(c, str) and c.startswith("# Parameters")]


def read_parameters(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook's parameters, converted to their annotated types. ParameterError for a wrong value, and
    for an unknown name in a cell of papermill (a reader in Lab may define further names)."""
    for parameter, path in (
        (name, path)
        for name in ("log", "against", "hang_path")
        for path in named(str(namespace.get(name) or ""))
        if injected_cells(namespace) and not namespace.get("record_path")
        if path != "-" and not os.path.lexists(os.path.expanduser(path))
    ):
        raise ParameterError(f"parameter {parameter}: there is no file {path}")
    known = {n: t for n, t in namespace.get("__annotations__", {}).items() if t in (bool, int, float, str)}
    check_names(
        (
            t.id
            for cell in injected_cells(namespace)[-1:]
            for n in ast.parse(cell).body
            if isinstance(n, ast.Assign)
            for t in n.targets
            if isinstance(t, ast.Name)
        ),
        known,
    )
    return {name: check_range(name, coerce(name, namespace[name], wanted)) for name, wanted in known.items()}
