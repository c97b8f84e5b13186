"""Facts about what the user brought: a symptom in words, and a log."""

from __future__ import annotations

import dataclasses

from nccl_runbook.core.facts import Gap
from nccl_runbook.logs.facts import FileRead


@dataclasses.dataclass(frozen=True)
class Message:
    """A line that the tables know. ``kind``: "cause" or "symptom"; ``id``: its row there; ``line``: its number in the log, negative where
    it is counted from the end (the middle of a long log is not read), 0 for the symptom's own text; ``times``: lines that say the same."""

    kind: str
    id: str
    line: int
    text: str
    times: int = 1


@dataclasses.dataclass(frozen=True)
class Start:
    """What was brought, and what can be said of this host before anything runs.

    ``log``: how its reading went, None if no log was named; ``messages``: what was recognised, in order of lines; ``devices``: device
    files of NVIDIA GPUs in /dev; ``driver``: the kernel module's version, as /proc/driver/nvidia/version has it.
    """

    symptom: str
    log_path: str
    log: FileRead | Gap | None
    messages: list[Message]
    devices: list[str] | Gap = Gap("absent", "not asked")
    driver: str | Gap = Gap("absent", "not asked")
