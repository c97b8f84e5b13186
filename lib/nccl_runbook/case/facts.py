"""What somebody gave."""

import dataclasses

from nccl_runbook.hang.facts import Hang
from nccl_runbook.messages.facts import Logs


@dataclasses.dataclass(frozen=True)
class Brought:
    """Sorted by what reads it. ``logs``: also dumps, stacks, archives, answers of RAS; ``scripts``: launch scripts and lists of variables;
    ``allocations``: also launch lines; ``words``: error texts and symptoms."""

    logs: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    configurations: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    allocations: tuple[str, ...] = ()
    pids: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Start:
    """What was given to 00-start. ``logs``: what the log and the symptom hold; None if neither was given. ``hang``: what dumps and stacks
    among the files show; None without any."""

    logs: Logs | None
    hang: Hang | None = None
