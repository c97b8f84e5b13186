"""The TOML tables of this room, read once."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any


def version(text: str) -> tuple[int, ...]:
    """ "2.11.0+cu130" as (2, 11, 0)."""
    return tuple(int(n) for n in re.findall(r"\d+", text.split("+")[0])[:3])


PACKAGE = Path(__file__).parents[1]


@functools.cache
def table(name: str) -> Mapping[str, Any]:
    """The table ``name``.toml, a path below the package; read-only at every level, arrays as tuples."""
    return _fixed(tomllib.loads((PACKAGE / f"{name}.toml").read_text(encoding="utf-8")))


def _fixed(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _fixed(one) for key, one in value.items()})
    return tuple(map(_fixed, value)) if isinstance(value, list) else value
