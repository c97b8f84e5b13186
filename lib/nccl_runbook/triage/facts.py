"""Facts about what the user gave, how a run was set up and how long things took."""

import dataclasses

from nccl_runbook.core.facts import Gap
from nccl_runbook.logs.facts import FileRead
from nccl_runbook.messages.facts import Logs


@dataclasses.dataclass(frozen=True)
class RunProfile:
    """How a run was set up and how long things took, as its log tells.

    ``settings``: kind ("version", "environment", "plugin", "network", "channels") -> name -> values seen; ``transports``: channels by
    transport, numbers taken out; ``communicators``: communicators opened (distinct ids); ``syncs``: weight syncs timed; ``devices``: rank
    -> "cudaDev 0 busId 60"; ``times``: "init", "step", "sync" -> seconds, in order.
    """

    files: list[FileRead]
    settings: dict[str, dict[str, list[str]]] = dataclasses.field(default_factory=dict)
    transports: dict[str, int] = dataclasses.field(default_factory=dict)
    communicators: int = 0
    syncs: int = 0
    devices: dict[str, str] = dataclasses.field(default_factory=dict)
    times: dict[str, list[float]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Start:
    """What was brought, and what can be said of this host before anything runs.

    ``logs``: what the log and the symptom hold, as 07-logs reads them; None if neither was brought. ``devices``: device
    files of NVIDIA GPUs in /dev. ``driver``: the version of the kernel module in /proc/driver/nvidia/version.
    """

    symptom: str
    log_path: str
    logs: Logs | None
    devices: list[str] | Gap = Gap("absent", "not asked")
    driver: str | Gap = Gap("absent", "not asked")
