"""Loads the TOML tables that lie beside the code that reads them."""
from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

PACKAGE = Path(__file__).parents[1]


@functools.cache
def table(name: str) -> Mapping[str, Any]:
    """The table ``name``.toml, a path below the package, with arrays as tuples. Read-only at every level."""
    raw = (PACKAGE / f"{name}.toml").read_bytes()
    checksum, parsed = worked_out("tables").get(name.rpartition("/")[2], (None, {}))
    if checksum != zlib.crc32(raw):
        import tomllib  # takes 50 ms with the tables of triage, so that tables.json holds those (tests/test_docs.py)

        parsed = tomllib.loads(raw.decode())
    return _fixed(parsed)


@functools.cache
def worked_out(name: str) -> dict[str, Any]:
    """What tests/test_docs.py wrote down ahead, as it costs too much at each start."""
    return json.loads((PACKAGE / "knowledge" / f"{name}.json").read_bytes())


def _fixed(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _fixed(one) for key, one in value.items()})
    return tuple(map(_fixed, value)) if isinstance(value, list) else value
