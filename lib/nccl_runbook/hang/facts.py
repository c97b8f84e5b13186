"""Facts about a job that hung, from what it left: recorder dumps of its ranks, logs, stacks, live looks."""

import dataclasses
from typing import Dict, List, Optional

from nccl_runbook.hang.live.facts import Live, RasAnswer
from nccl_runbook.logs.facts import ClockOffset, LogLine
from nccl_runbook.messages.facts import Logs

# no member completes these before each has issued them; a broadcast's root may
_NEEDS_ALL = (
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "all_to_all",
    "alltoall",
    "barrier",
)

EARLIER = "of an earlier attempt"  # how the problem of a file begins that is left out for that


def needs_all(call: str) -> bool:
    """Whether nobody completes this before every member has issued it."""
    return call.startswith(_NEEDS_ALL) or "barrier" in call


@dataclasses.dataclass(frozen=True)
class Op:
    """One operation of one rank. ``call``: "all_reduce 1024 x Float"; ``state``: completed, started,
    scheduled, timed-out, or returned (Gloo: it came back, which a time-out does, too); ``age_s``: from its
    creation to the writing of the dump, None where unknown."""

    seq: int
    call: str
    state: str
    timeout_ms: int = 0
    frame: str = ""
    age_s: Optional[float] = None
    created_ns: int = 0


@dataclasses.dataclass(frozen=True)
class Track:
    """One rank in one group, by sequence numbers of collectives.

    ``enqueued``: the last one that it issued; ``completed``: the last complete one; ``joined``: the last
    complete one that no member can finish alone, so that all have issued it; ``known``: False where the ring
    buffer no longer tells; ``opened``: the earliest that is not complete; ``tail``: one letter each for the
    last numbers of the group (c s o t r as in Op.state, "." not issued, "?" not known).
    """

    rank: int
    enqueued: int
    completed: int
    joined: int
    known: bool
    opened: Optional[Op] = None
    last: Optional[Op] = None
    tail: str = ""
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Difference:
    """Members called different things at one number. ``calls``: call -> ranks; ``before``: call -> how
    often it had followed the same predecessor earlier in this group; where nothing stands before it, how
    often ranks of other groups with the same description have it at that number. ``after``: what most often
    comes next in this group."""

    seq: int
    calls: Dict[str, List[int]]
    before: Dict[str, int]
    after: Dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Group:
    """One process group. ``certain``: its members stand in a dump, and are not only those that used it;
    ``tail_from``: the number of the first letter of each ``tail``."""

    name: str
    desc: str
    ranks: List[int]
    certain: bool
    tracks: List[Track]
    differences: List[Difference]
    tail_from: int = 1


@dataclasses.dataclass(frozen=True)
class Channel:
    """Point-to-point operations from ``src`` to ``dst`` that are not complete;
    -1 where that end left no dump."""

    group: str
    src: int
    dst: int
    sends_open: int
    recvs_open: int
    first: Optional[Op] = None


@dataclasses.dataclass(frozen=True)
class Dump:
    """One rank's dump. ``left_out``: not None where among its last steps is one that no other rank took,
    or that broke its own habit; then what that habit had there ("tp all_reduce"); ``order``: its operations
    that are not complete, as issued ("group:number", "group:p2p"); ``waiting``: share of the last while that
    operations were under way, and ``pace_ms`` from one to the next, None where nothing tells; ``late``: share
    of it for which all others waited for this rank to come, and ``late_ms`` in the middle, None where they
    did not; ``late_error_ms``: how much of that its clock may be ahead; ``written``: seconds since the epoch,
    None where the file's time is not to be trusted; ``timed``: it tells when its GPU began."""

    rank: int
    backend: str
    entries: int
    written: Optional[float]
    left_out: Optional[List[str]]
    order: List[str]
    last: Optional[Op] = None
    waiting: Optional[float] = None
    pace_ms: Optional[float] = None
    timed: bool = False
    late: Optional[float] = None
    late_ms: Optional[float] = None
    late_error_ms: float = 0.0


@dataclasses.dataclass(frozen=True)
class Stack:
    """The place of one rank's main thread. ``frames``: "function, file:line", innermost first; ``state``: "T"
    and so on if it is known."""

    rank: int
    source: str
    frames: List[str]
    state: str = ""


@dataclasses.dataclass(frozen=True)
class Count:
    """The last that a rank said about its number of minibatches."""

    rank: int
    number: int
    line: LogLine


@dataclasses.dataclass(frozen=True)
class HangFile:
    """One file. ``what``: dump, log, stack, live, ras, or "" for none of them; ``problem``: why
    it was not used, "" if it was."""

    name: str
    what: str
    rank: Optional[int] = None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Hang:
    """Everything that was handed over. ``clocks``: those of ranks (by number) against the middle one,
    to which all times here are brought; empty where they are together. ``looks``: at the ranks while they
    lived; ``ras``: answers of NCCL's RAS, in order."""

    files: List[HangFile]
    dumps: List[Dump]
    groups: List[Group]
    channels: List[Channel]
    stacks: List[Stack]
    logs: Logs
    counts: List[Count] = dataclasses.field(default_factory=list)
    clocks: List[ClockOffset] = dataclasses.field(default_factory=list)
    looks: List[Live] = dataclasses.field(default_factory=list)
    ras: List[RasAnswer] = dataclasses.field(default_factory=list)
