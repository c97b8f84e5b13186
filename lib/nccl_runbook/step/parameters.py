"""The parameters of a notebook, and where its outputs go."""

import ast
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nccl_runbook.core.facts import Unusable
from nccl_runbook.core.parameters import check_names, check_range, coerce
from nccl_runbook.launch.gpu_lists import gpu_ranges
from nccl_runbook.logs.file import named

PATHS = ("log", "against", "hang_path", "script", "records")


def outputs_root() -> Path:
    """``outputs/`` of the checkout that holds this package, else below the working directory."""
    checkout = Path(__file__).resolve().parents[3]
    return (checkout if (checkout / "notebooks").is_dir() else Path.cwd()) / "outputs"


def injected_cells(namespace: Mapping[str, Any]) -> list[str]:
    """Sources of the cells that papermill put into this notebook (papermill 2.7, parameterize.py)."""
    return [c for c in namespace.get("In", []) if isinstance(c, str) and c.startswith("# Parameters")]


def read_parameters(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook's parameters, converted to their annotated types. Unusable for a wrong value, and for an
    unknown name in a cell of papermill (a reader in Lab may define further names)."""
    injected = injected_cells(namespace)[-1:]
    known = {n: t for n, t in namespace.get("__annotations__", {}).items() if t in (bool, int, float, str)}
    check_names(
        (
            t.id
            for cell in injected
            for n in ast.parse(cell).body
            if isinstance(n, ast.Assign)
            for t in n.targets
            if isinstance(t, ast.Name)
        ),
        known,
    )
    values = {n: check_range(n, coerce(n, namespace[n], wanted)) for n, wanted in known.items()}
    given = [] if values.get("record_path") or not injected else [n for n in PATHS if values.get(n)]
    for name, path in ((n, path) for n in given for path in named(values[n])):
        if path != "-" and not os.path.lexists(os.path.expanduser(path)):
            raise Unusable(f"parameter {name}: there is no file {path}")
    check_values(values)
    return values


def check_values(values: Mapping[str, Any]) -> None:
    """Unusable for a value that no machine accepts; an empty value is the default."""
    # loaded late: the commands that only read do not need them
    from nccl_runbook.launch.command import compiled
    from nccl_runbook.plan.allocation import areal_rules
    from nccl_runbook.sync import ask, models
    from nccl_runbook.worlds.ask_arms import check_only

    checks: dict[str, Callable[[Any], object]] = {
        "gpus": gpu_ranges,
        "model": models.find,
        "methods": ask.methods_of,
        "figure": compiled,
        "areal": areal_rules.at,
        "only": check_only,
    }
    for name in [name for name in checks if values.get(name)]:
        checks[name](values[name])
