"""Facts about what the user brought: a symptom in words, and a log."""

import dataclasses

from nccl_runbook.core.facts import Gap
from nccl_runbook.messages.facts import Logs


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
