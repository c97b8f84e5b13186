"""Tables as data, one TOML file a subject, and their loaders. No opinion on any machine."""
from __future__ import annotations

import functools
import json
import zlib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@functools.cache
def table(name: str) -> dict[str, Any]:
    """What ``name``.toml holds, arrays as tuples; read once for all, so not to be changed."""
    raw = (HERE / f"{name}.toml").read_bytes()
    checksum, parsed = worked_out("tables").get(name, (None, {}))
    if checksum != zlib.crc32(raw):
        import tomllib  # takes 50 ms with the tables of triage, so that tables.json holds those (tests/test_docs.py)

        parsed = tomllib.loads(raw.decode())
    return _fixed(parsed)


@functools.cache
def worked_out(name: str) -> dict[str, Any]:
    """What tests/test_docs.py wrote down ahead, as it costs too much at each start."""
    return json.loads((HERE / f"{name}.json").read_bytes())


def _fixed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _fixed(one) for key, one in value.items()}
    return tuple(map(_fixed, value)) if isinstance(value, list) else value
