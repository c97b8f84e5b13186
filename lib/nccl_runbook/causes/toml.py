"""Loads the TOML tables that lie beside the code that reads them."""
from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]


@functools.cache
def table(name: str) -> dict[str, Any]:
    """The table ``name``.toml, a path below the package, with arrays as tuples. It is shared: do not change it."""
    return _fixed(tomllib.loads((PACKAGE / f"{name}.toml").read_text(encoding="utf-8")))


def _fixed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _fixed(one) for key, one in value.items()}
    return tuple(map(_fixed, value)) if isinstance(value, list) else value
