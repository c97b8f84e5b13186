"""Facts of a fleet: the records of each night, and the history of earlier nights."""

import dataclasses
from typing import Any

from nccl_runbook.core.facts import Gap
from nccl_runbook.hosts.facts import Hosts

LINE_SCHEMA = "nccl-runbook/fleet-node/1"
ORDER = ("broken", "warn", "unknown", "running", "skipped", "note", "ok")  # statuses of a record, worst first
MISSING = "missing"  # status of a node that left no readable record in a night
TESTED = ("ok", "note", "warn", "broken")  # statuses that say whether a node failed


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One node in one night, a line of the history. ``night``: date of its evening; ``node``: empty for the
    line of the facts that most nodes share; ``status``: worst of its records, or MISSING; ``steps``: step ->
    status; ``odd``: names of facts in which it differed from most nodes; ``facts``: path -> value, only what
    most nodes do not share (None: absent here)."""

    night: str
    node: str = ""
    status: str = ""
    reason: str = ""
    steps: dict[str, str] = dataclasses.field(default_factory=dict)
    odd: list[str] = dataclasses.field(default_factory=list)
    facts: dict[str, str | None] = dataclasses.field(default_factory=dict)

    @property
    def tested(self) -> bool:
        """Whether its records say if the node failed."""
        return self.status in TESTED

    @property
    def failed(self) -> bool:
        """Whether a record of the night is broken."""
        return self.status == "broken"


@dataclasses.dataclass(frozen=True)
class Night:
    """All records of one night."""

    name: str
    hosts: Hosts


@dataclasses.dataclass(frozen=True)
class History:
    """``lines``: night -> node -> line; ``unread``: numbers of the lines that could not be read; ``text``:
    the file as it is."""

    lines: dict[str, dict[str, Line]]
    unread: list[int] = dataclasses.field(default_factory=list)
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Change:
    """A fact that changed on ``nodes`` since the night ``since``. ``name`` is "status" for the outcome."""

    name: str
    was: str
    now: str
    since: str
    nodes: list[str]
    severity: str = "note"


@dataclasses.dataclass(frozen=True)
class Rate:
    """How often a node failed: in ``failed`` of the ``tested`` nights; ``low``, ``high``: 95 % interval;
    ``chance``: probability of a difference as large from the other nodes if all fail alike (Fisher's exact
    test); ``last``: the last night in which it failed."""

    node: str
    failed: int
    tested: int
    low: float
    high: float
    chance: float
    last: str

    @property
    def text(self) -> str:
        """ "failed 3 of 10 nights (95% interval: 11% to 60%)"."""
        return (
            f"failed in {self.failed} of {self.tested} nights (95% interval: {self.low:.0%} to "
            f"{self.high:.0%})"
        )


@dataclasses.dataclass(frozen=True)
class Fleet:
    """The newest night beside the earlier ones. ``lines``: node -> its line of the newest night, also of
    missing nodes; ``history``: all nights, with this one; ``expected``: names that were given, or a Gap;
    ``last_answers``: missing node -> the last night in which it left a record, or empty; ``rates``: nodes of
    this night that failed in any night; ``flaky``: those that fail more often than the others."""

    night: Night
    lines: dict[str, Line]
    history: History
    expected: list[str] | Gap
    changes: list[Change]
    rates: list[Rate]
    flaky: list[Rate]
    last_answers: dict[str, str] = dataclasses.field(default_factory=dict)
    differing: list[Any] = dataclasses.field(default_factory=list)
