"""Tables as data, one TOML file a subject, and their loaders. No opinion on any machine."""
from __future__ import annotations

import functools
import tomllib
from importlib.resources import files
from typing import Any


@functools.cache
def table(name: str) -> dict[str, Any]:
    """What ``name``.toml holds, arrays as tuples; read once for all, so not to be changed."""
    return _fixed(tomllib.loads((files(__package__) / f"{name}.toml").read_text(encoding="utf-8")))


def _fixed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _fixed(one) for key, one in value.items()}
    return tuple(map(_fixed, value)) if isinstance(value, list) else value
