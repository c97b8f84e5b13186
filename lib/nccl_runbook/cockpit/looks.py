"""Looks at ranks from the form. The last one is kept, as it shows its moment also after the job has ended."""

import dataclasses
import re

from nccl_runbook.case.given import Material
from nccl_runbook.hang.live.ask import Look
from nccl_runbook.hang.live.ask_proc import runs
from nccl_runbook.hang.live.facts import Live
from nccl_runbook.look import live

GAP_S = 10.0  # between two samples of a process, as the command line has it
PID = re.compile(r"\s*pid:\d{1,20}\s*")


@dataclasses.dataclass(eq=False)
class Looks:
    """``last``: the last look, or None. Only ``with_ranks`` and other processes cause another one."""

    last: Live | None = None
    _pids: list[int] = dataclasses.field(default_factory=list)
    _found: list[int] = dataclasses.field(default_factory=list)

    def at(self, pids: list[int]) -> Live:
        """The look at these processes; ValueError if one that somebody named does not run, or is not
        readable. Of those that ``with_ranks`` found, the ones that still run."""
        if self.last is None or pids != self._pids:
            running = [pid for pid in pids if pid not in self._found or runs(pid)]
            self.last, self._pids = live.look(live.checked_pids(running or pids), GAP_S, str), pids
        return self.last

    def with_ranks(self, given: str) -> str:
        """What was given, with the ranks that run here in place of those that were looked at before; ``at``
        then looks anew. If none runs, the last look stays."""
        self._found = [rank.pid for rank in Look([]).ranks]
        if self.last and not self._found:
            return given
        self.last = None
        kept = (line for line in given.splitlines() if not PID.fullmatch(line))
        return "\n".join([*kept, *(f"pid:{pid}" for pid in self._found)])


def has_ended(material: Material) -> bool:
    """Whether processes were given, and none of them runs any more."""
    return bool(material.pids) and not any(runs(int(pid)) for pid in material.pids)
