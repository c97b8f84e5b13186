"""Facts about what a failed job printed: known messages, and how far each rank came."""

import dataclasses

from nccl_runbook.logs.facts import ClockOffset, FileRead, LogLine

# id in ``seen`` of the frames of a program's own code in which exceptions were raised
OWN_FRAME = "own-frame"
# of a watchdog line: with a number of its own (ProcessGroupNCCL.cpp, torch 2.11: seqP2P_), or without a name
NOT_COUNTED = ("SEND", "RECV", "COALESCED", "UNKNOWN", "ELIDED")
CONTEXT = "--context"  # stands for a file in the lines that the reporter wrote


@dataclasses.dataclass(frozen=True)
class Seen:
    """Lines of one message: the first of each rank, at most MAX_LINES. ``times``: how often in all;
    ``resumed``: the same rank made progress after the last one."""

    lines: list[LogLine]
    times: int
    resumed: bool = False


@dataclasses.dataclass(frozen=True)
class Timeout:
    """A watchdog line. ``seq``: sequence number, None before torch 1.12; times in milliseconds, ``ran_ms``
    -1 if cut off."""

    at: LogLine
    op: str
    seq: int | None
    numel_in: int | None
    timeout_ms: int
    ran_ms: int
    group: str = ""


@dataclasses.dataclass(frozen=True)
class RankLog:
    """The log of one rank. ``enqueued``, ``completed``: group -> last sequence number; ``devices``: "cudaDev
    0 nvmlDev 0 busId 60" of each communicator; ``first_error``: first exception or fatal line, or None;
    ``last``: its last line; ``ended``: it reported its end; ``warned``: its watchdog reported, so the
    process lived then."""

    rank: int
    hosts: list[str]
    files: list[str]
    nranks: int | None = None
    nccl: str = ""
    torch: str = ""
    network: str = ""
    transports: dict[str, int] = dataclasses.field(default_factory=dict)
    devices: list[str] = dataclasses.field(default_factory=list)
    communicators: int = 0
    enqueued: dict[str, int] = dataclasses.field(default_factory=dict)
    completed: dict[str, int] = dataclasses.field(default_factory=dict)
    timeouts: list[Timeout] = dataclasses.field(default_factory=list)
    first_error: LogLine | None = None
    progress: LogLine | None = None
    last: LogLine | None = None
    ended: bool = False
    warned: bool = False


@dataclasses.dataclass(frozen=True)
class Template:
    """Lines that look like errors, equal except for numbers, and match nothing known."""

    first: LogLine
    times: int


@dataclasses.dataclass(frozen=True)
class Logs:
    """Everything that was read. ``seen``: id of a message -> lines; ``catalogue``: version with these ids;
    ``launcher``: "torchrun", "srun", ... or empty; ``foreign``: nothing looks like a job's log (no word of
    NCCL, torch, CUDA, a rank or a traceback); ``nccl_versions``: version -> who printed it; ``failed``,
    ``timeout``, ``raised``: the first fatal line, watchdog line, and exception that does not follow another
    rank's failure; ``clocks``: offsets of the clocks, empty if nothing connects them; ``apart``: calls of
    one number that differ between processes; ``here``: host on which they were read; ``attempts``: how often
    the launcher started the ranks; ``again``: the last line of each file by which the launcher started them
    again."""

    files: list[FileRead]
    context: str
    seen: dict[str, Seen]
    ranks: list[RankLog]
    launcher: str = ""
    unknown: list[Template] = dataclasses.field(default_factory=list)
    foreign: bool = False
    nccl_versions: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    failed: LogLine | None = None
    timeout: LogLine | None = None
    raised: LogLine | None = None
    clocks: list[ClockOffset] = dataclasses.field(default_factory=list)
    apart: list[LogLine] = dataclasses.field(default_factory=list)
    here: str = ""
    attempts: int = 1
    again: list[LogLine] = dataclasses.field(default_factory=list)
    catalogue: str = ""
