"""Since when each rank of a running job has not moved, asked every few seconds beside it. Reads only.

What changes while a rank works: the Python stack of its main thread (py-spy reads it without pausing
the process), the number of collectives that NCCL's RAS counts, and the log that it writes. Bytes written
do not count: monitors inside the ranks write on while the job hangs.
"""

import dataclasses
import os
import stat
import time
from typing import Any, Dict, Iterable, List, Tuple

from nccl_runbook.core.facts import known
from nccl_runbook.hang.live.ask import chosen
from nccl_runbook.hang.live.ask_answers import find_py_spy, stacks
from nccl_runbook.hang.live.ask_proc import unless_gone
from nccl_runbook.hang.live.ask_processes import Process
from nccl_runbook.hang.live.ask_ras import ras


@dataclasses.dataclass
class Progress:
    """``still_s``: pid of a rank -> seconds since it last changed, from the first question on; ranks that
    were missing at the last question are left out."""

    since: Dict[int, Tuple[object, float]] = dataclasses.field(default_factory=dict)
    still_s: Dict[int, float] = dataclasses.field(default_factory=dict)

    def ask(self, pids: Iterable[int]) -> List[Process]:
        """Ranks of these processes' jobs, or of all jobs of this user if none is named."""
        ranks, _ = chosen(list(pids), others=False)
        py_spy = find_py_spy([r.pid for r in ranks])
        launched = _launched(ranks)
        now = {r.pid: (_main_thread(py_spy, r.pid), launched, _log_bytes(r.pid)) for r in ranks}
        at = time.monotonic()
        self.since = {
            pid: self.since[pid] if pid in self.since and self.since[pid][0] == state else (state, at)
            for pid, state in now.items()
        }
        self.still_s = {pid: at - began for pid, (_, began) in self.since.items()}
        return ranks

    def again(self, pids: Iterable[int]) -> None:
        """Restart the time of these ranks: a look showed that they do not hang."""
        for pid in pids:
            self.since[pid] = (self.since[pid][0], time.monotonic())


def _main_thread(py_spy: Any, pid: int) -> object:
    return [(f.function, f.file, f.line) for main in known(stacks(py_spy, pid))[:1] for f in main.frames]


def _launched(ranks: List[Process]) -> object:
    """Collectives that NCCL counts, of all communicators together: RAS names no pid where all have one."""
    named = [r.variables["NCCL_RAS_ADDR"] for r in ranks if "NCCL_RAS_ADDR" in r.variables]
    communicators = known(ras(named)) if any(r.nccl for r in ranks) else []
    return [(c.id, [(r.rank, r.launched) for r in c.ranks]) for c in communicators]


def _log_bytes(pid: int) -> List[int]:
    """Size of its standard output and error in bytes, if they are regular files."""
    there = [unless_gone(None, os.stat, f"/proc/{pid}/fd/{descriptor}") for descriptor in (1, 2)]
    return [s.st_size for s in there if s and stat.S_ISREG(s.st_mode)]
