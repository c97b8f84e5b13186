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
UNDATED = "times of the files"  # source of evidence that limits what the dumps prove


def needs_all(call: str) -> bool:
    """Whether no member completes this operation before every member has issued it."""
    return call.startswith(_NEEDS_ALL) or "barrier" in call


@dataclasses.dataclass(frozen=True)
class Op:
    """One operation of one rank. ``call``: "all_reduce 1024 x Float"; ``state``: completed, started,
    scheduled, timed-out, or returned (Gloo: the call returned, which also happens on a timeout); ``age_s``:
    seconds from creation until the dump was written, None if unknown."""

    seq: int
    call: str
    state: str
    timeout_ms: int = 0
    frame: str = ""
    age_s: Optional[float] = None
    created_ns: int = 0


@dataclasses.dataclass(frozen=True)
class Track:
    """One rank in one group, by sequence numbers. ``enqueued``: last issued; ``completed``: last complete;
    ``joined``: last complete one that no member can finish alone, so every member has issued it; ``known``:
    False if the ring buffer has dropped it; ``opened``: earliest that is not complete; ``tail``: a letter
    for each of the group's last numbers (c s o t r as in Op.state, "." not issued, "?" unknown)."""

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
    """Members called different operations at one number. ``calls``: call -> ranks; ``before``: call -> how
    often it followed the same predecessor earlier in this group (without a predecessor: how often ranks of
    similar groups have it at that number); ``after``: what usually follows in this group."""

    seq: int
    calls: Dict[str, List[int]]
    before: Dict[str, int]
    after: Dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Group:
    """One process group. ``certain``: a dump lists its members, rather than only those that used it;
    ``tail_from``: number of the first letter of each ``tail``."""

    name: str
    desc: str
    ranks: List[int]
    certain: bool
    tracks: List[Track]
    differences: List[Difference]
    tail_from: int = 1


@dataclasses.dataclass(frozen=True)
class Channel:
    """Point-to-point operations from ``src`` to ``dst`` that are not complete; -1 if that end left no
    dump."""

    group: str
    src: int
    dst: int
    sends_open: int
    recvs_open: int
    first: Optional[Op] = None


@dataclasses.dataclass(frozen=True)
class Dump:
    """One rank's dump. ``left_out``: the usual operation ("tp all_reduce") if a recent step is one that no
    other rank took, or that broke this rank's habit, else None; ``order``: incomplete operations, as issued
    ("group:number", "group:p2p"); ``waiting``: share of recent time in operations, ``pace_ms``: from one to
    the next (None if unknown); ``late``: share in which all others waited for this rank, ``late_ms``: median
    (None if they did not); ``late_error_ms``: how far its clock may be ahead; ``written``: seconds since the
    epoch, None if the file time is not reliable; ``timed``: whether GPU start times are recorded."""

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
    """Where one rank's main thread is. ``frames``: "function, file:line", innermost first; ``state``:
    process state if known ("T")."""

    rank: int
    source: str
    frames: List[str]
    state: str = ""


@dataclasses.dataclass(frozen=True)
class Count:
    """The last number of minibatches that a rank reported."""

    rank: int
    number: int
    line: LogLine


@dataclasses.dataclass(frozen=True)
class HangFile:
    """One file. ``what``: dump, log, stack, live, ras, or empty for none of them; ``problem``: why it was
    not used, else empty."""

    name: str
    what: str
    rank: Optional[int] = None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Hang:
    """Everything that was given. ``clocks``: ranks' clocks relative to the median one, to which all times
    are converted (empty if they agree); ``looks``: at running ranks; ``ras``: answers of NCCL's RAS, in
    order."""

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
