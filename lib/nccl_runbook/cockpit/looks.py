"""Looks at ranks from the form. The last one is kept, as it shows its moment also after the job has ended."""

import dataclasses
import os
import re

from nccl_runbook.case.given import Material
from nccl_runbook.hang.live.ask import Look
from nccl_runbook.hang.live.facts import Live
from nccl_runbook.look import live

GAP_S = 10.0  # between two samples of a process, as the command line has it
PID = re.compile(r"\s*pid:\d{1,20}\s*")


@dataclasses.dataclass
class Looks:
    """``last``: the last look, or None. Only ``with_ranks`` and other processes cause another one."""

    last: Live | None = None
    _pids: list[int] = dataclasses.field(default_factory=list)

    def at(self, pids: list[int]) -> Live:
        """The look at these processes; ValueError if one does not run, or is not readable."""
        if self.last is None or pids != self._pids:
            self.last, self._pids = live.look(live.checked_pids(pids), GAP_S, str), pids
        return self.last

    def with_ranks(self, given: str) -> str:
        """What was given, with the ranks that run here in place of those that were looked at before; ``at``
        then looks anew. If none runs, the last look stays."""
        ranks = [f"pid:{rank.pid}" for rank in Look([]).ranks]
        if self.last and not ranks:
            return given
        self.last = None
        return "\n".join([*(line for line in given.splitlines() if not PID.fullmatch(line)), *ranks])


def has_ended(material: Material) -> bool:
    """Whether processes were given, and none of them runs any more."""
    return bool(material.pids) and not any(os.path.exists(f"/proc/{pid}") for pid in material.pids)
