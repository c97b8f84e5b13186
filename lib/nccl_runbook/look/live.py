"""A live look at the ranks on this host (`nccl-look.pyz --live`, `nccl-runbook look`): a table at once, the rest after the gap."""
import os
import sys
from typing import Any, Callable, Dict, List, Sequence

from nccl_runbook.core.facts import to_json, utc_now
from nccl_runbook.hang.live.ask import Look
from nccl_runbook.hang.live.facts import Live
from nccl_runbook.look.page import first_text

STEP = "06-timeouts"
REASON = "not judged yet: nccl-runbook look --record FILE"


def look(pids: Sequence[int], gap_s: float, say: Callable[[str], None], keep: Callable[[Live], None] = lambda _: None) -> Live:
    """The facts; ``say`` and ``keep`` get the first evidence as soon as it is there. ValueError where a named process may not be read."""
    if not 0 <= gap_s <= 3600:
        raise ValueError(f"gap: {gap_s:g} is not from 0 to 3600 seconds")
    looking = Look(pids)
    hidden = [p for p in pids if not os.access(f"/proc/{p}/environ", os.R_OK)]
    if hidden and not looking.ranks:
        raise ValueError(f"process {hidden[0]} may not be read, it is another user's or has just ended: look as that user, or as root")
    first = looking.first()
    say(first_text(first))
    keep(first)
    if not first.ranks or gap_s <= 0:
        return first
    say(f"further samples for {gap_s:g} s: only then can a rank be called hung")
    return looking.after(gap_s)


def record(live: Live, wall_s: float) -> Dict[str, Any]:
    judged = {"python": sys.executable, "host": os.uname().nodename}
    return unjudged(STEP, REASON, live.taken, wall_s, parameters={"gap_s": live.gap_s}, judged=judged, facts=to_json({"live": live}))


def unjudged(step: str, reason: str, started: str, wall_s: float, **parts: Any) -> Dict[str, Any]:
    """As records.Record reads it; without a judgement."""
    return {"schema": "nccl-runbook/record/1", "step": step, "status": "unknown", "reason": reason, "started": started, "ended": utc_now(),
            "wall_s": round(wall_s, 2), **parts}


def checked_pids(pids: Sequence[int]) -> List[int]:
    """The same; raises ValueError for one without a process, and where there is no /proc."""
    if not os.path.isdir("/proc/self"):
        raise ValueError("a live look reads /proc, which only Linux has: look on the node, and judge the record here with --record")
    gone = [p for p in pids if not os.path.exists(f"/proc/{p}")]
    if gone:
        raise ValueError(f"there is no process {gone[0]} here: --pid takes pids of this host, as ps shows them")
    return list(pids)
