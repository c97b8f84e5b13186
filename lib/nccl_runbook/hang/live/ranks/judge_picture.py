"""What is known of each rank of a live look, and the words that name ranks."""

import collections
import dataclasses
from typing import Iterable, List, Optional

from nccl_runbook.core.facts import Evidence, counted, rank_names
from nccl_runbook.hang.live.facts import LiveRank

WAITING = ("waits", "device", "spins", "lock")


@dataclasses.dataclass(frozen=True)
class RankView:
    """One rank. ``does``: waits (in a collective), device (for its GPU), spins (one call on a CPU: NCCL
    polls, or it computes), lock (does not move, no stack), stopped, busy, asleep (elsewhere), missing,
    starting (no torch yet), moving, or unknown; ``frame``: where it is in its own code; ``where``: call in
    which it waits, or empty; ``helper``: own process that it waits for; ``process``: facts about it, None if
    missing."""

    rank: Optional[int]
    host: str
    pid: Optional[int]
    does: str
    frame: str = ""
    where: str = ""
    has_gil: bool = False
    helper: str = ""
    process: Optional[LiveRank] = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """ "rank 3", or "process 4711" if its rank is unknown."""
        return f"rank {self.rank}" if self.rank is not None else f"process {self.pid}"


@dataclasses.dataclass(frozen=True)
class Picture:
    """One job. ``kind``: skipped, mismatch, unmatched, slow, dead, stopped, gpu-stuck, gil-held, host-busy,
    unreachable, left-over, symmetric, healthy, unknown; ``status``: as of a hypothesis, "" for none;
    ``decides``: what to do or collect next, as a line to paste."""

    job: str
    kind: str
    sentence: str
    culprits: List[RankView]
    victims: List[RankView]
    ranks: List[RankView]
    world_size: Optional[int] = None
    collective: str = ""
    cause: Optional[str] = None
    status: str = ""
    evidence: List[Evidence] = dataclasses.field(default_factory=list)
    not_seen: List[str] = dataclasses.field(default_factory=list)
    decides: str = ""


def accuse(
    base: Picture,
    kind: str,
    culprits: List[RankView],
    why: str,
    cause: Optional[str],
    status: str,
    observed: Iterable[Evidence] = (),
    decides: str = "",
) -> Picture:
    """The picture with its sentence: who did not come, what that rank does, how many wait for it and
    where."""
    late = set(culprits)
    victims = [v for v in base.ranks if v not in late and v.does in WAITING]
    collective = next(iter(collections.Counter(v.where for v in victims if v.where)), "")
    hosts = sorted({v.host for v in culprits})[:4] if len({v.host for v in base.ranks}) > 1 else []
    who = f"{names(culprits)}{' on ' if hosts else ''}{', '.join(hosts)} " if culprits else ""
    wait = (
        f"; {counted(len(victims), 'rank')} wait{'s' if len(victims) == 1 else ''} for "
        f"{'it' if len(culprits) == 1 else 'them'}{f' in {collective}' if collective else ''}"
    )
    sentence = f"{who}{why}{wait if victims and culprits else ''}"
    own = (
        Evidence(f"{v.name} waits in {v.frame}", f"pid {v.pid} on {v.host}") for v in victims[:4] if v.frame
    )
    return dataclasses.replace(
        base,
        kind=kind,
        sentence=sentence,
        culprits=culprits,
        victims=victims,
        collective=collective,
        cause=cause,
        status=status,
        evidence=[
            *observed,
            *own,
            *(
                [Evidence(f"{len(victims) - 4} more ranks wait", "table of ranks")]
                if len(victims) > 4
                else []
            ),
        ],
        # a Python line that is known says more than native frames
        decides=decides or stack_line([v for v in culprits if not v.frame] if culprits else victims),
    )


def names(views: List[RankView]) -> str:
    """The ranks in a sentence, processes by pid."""
    return rank_names([v.rank if v.rank is not None else f"(pid {v.pid})" for v in views])


def all_wait(views: List[RankView]) -> str:
    """ "rank 3 waits", "all 8 ranks wait"."""
    return f"{views[0].name} waits" if len(views) == 1 else f"all {len(views)} ranks wait"


def is_are(culprits: List[RankView]) -> str:
    """The verb for this number of ranks."""
    return "is" if len(culprits) == 1 else "are"


def stack_line(views: Iterable[RankView]) -> str:
    """A py-spy command for the first of these ranks that has a process; empty if none has."""
    return next((f"py-spy dump --native --pid {v.pid}" for v in views if v.pid), "")
