"""Facts about how a run was set up and how long things took."""

from __future__ import annotations

import dataclasses
from typing import Dict, List

from nccl_runbook.logs.facts import FileRead



@dataclasses.dataclass(frozen=True)
class RunProfile:
    """How a run was set up and how long things took, as its log tells.

    ``settings``: kind ("version", "environment", "plugin", "network", "channels") -> name -> values seen; ``transports``: channels by
    transport, numbers taken out; ``communicators``: communicators opened (distinct ids); ``syncs``: weight syncs timed; ``devices``: rank
    -> "cudaDev 0 busId 60"; ``times``: "init", "step", "sync" -> seconds, in order.
    """

    files: List[FileRead]
    settings: Dict[str, Dict[str, List[str]]] = dataclasses.field(default_factory=dict)
    transports: Dict[str, int] = dataclasses.field(default_factory=dict)
    communicators: int = 0
    syncs: int = 0
    devices: Dict[str, str] = dataclasses.field(default_factory=dict)
    times: Dict[str, List[float]] = dataclasses.field(default_factory=dict)
