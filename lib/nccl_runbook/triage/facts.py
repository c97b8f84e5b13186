"""Facts about how a run was set up and how long things took."""

import dataclasses

from nccl_runbook.logs.facts import FileRead


@dataclasses.dataclass(frozen=True)
class RunProfile:
    """How a run was set up and how long things took, as its log tells.

    ``settings``: kind ("version", "environment", "plugin", "network", "channels") -> name -> values
    seen; ``transports``: channels by transport, numbers taken out; ``communicators``: communicators
    opened (distinct ids); ``syncs``: weight syncs timed; ``devices``: rank -> "cudaDev 0 busId 60";
    ``times``: "init", "step", "sync" -> seconds, in order.
    """

    files: list[FileRead]
    settings: dict[str, dict[str, list[str]]] = dataclasses.field(default_factory=dict)
    transports: dict[str, int] = dataclasses.field(default_factory=dict)
    communicators: int = 0
    syncs: int = 0
    devices: dict[str, str] = dataclasses.field(default_factory=dict)
    times: dict[str, list[float]] = dataclasses.field(default_factory=dict)
