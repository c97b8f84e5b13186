"""Facts about a run's folder: which steps left a record, and what they add up to."""
from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """``read``: steps whose record was read; ``unreadable``: step -> why not; ``document``: the verdict document (verdict.json)."""

    name: str
    read: list[str]
    unreadable: dict[str, str]
    document: dict[str, Any]
