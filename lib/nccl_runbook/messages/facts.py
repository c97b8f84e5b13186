"""Facts about what a failed job printed: known messages, and how far each rank came."""

import dataclasses

from nccl_runbook.logs.facts import ClockOffset, FileRead, LogLine

CONTEXT = "--context"  # stands for a file in the lines that the reporter wrote


@dataclasses.dataclass(frozen=True)
class Seen:
    """Lines of one message: the first of each rank, at most MAX_LINES; ``times``: how often in all;
    ``resumed``: the same rank went on making progress after the last of them."""

    lines: list[LogLine]
    times: int
    resumed: bool = False


@dataclasses.dataclass(frozen=True)
class Timeout:
    """A watchdog line. ``seq``: sequence number, None before torch 1.12; times in milliseconds,
    ``ran_ms`` -1 where it is cut off."""

    at: LogLine
    op: str
    seq: int | None
    numel_in: int | None
    timeout_ms: int
    ran_ms: int
    group: str = ""


@dataclasses.dataclass(frozen=True)
class RankLog:
    """What one rank left.

    ``enqueued`` and ``completed``: last sequence number by group; ``devices``: "cudaDev 0 nvmlDev
    0 busId 60" of each communicator; ``first_error``: its first exception or fatal line, None for none;
    ``last``: its last line at all; ``ended``: it said that it was done; ``warned``: its watchdog spoke up,
    so the process lived then.
    """

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
    """Lines that look like errors, equal but for their numbers, and match nothing that is known."""

    first: LogLine
    times: int


@dataclasses.dataclass(frozen=True)
class Logs:
    """Everything that was read.

    ``seen``: id of a message -> lines; ``catalogue``: version of the catalogue that has these ids.
    ``launcher``: "torchrun", "srun", ... or "". ``foreign``: nothing in it looks like a job's log (no word
    of NCCL, torch, CUDA, a rank or a traceback). ``nccl_versions``: version -> who said so. ``failed``,
    ``timeout`` and ``raised``: the first fatal line, watchdog line, and exception that is no echo of another
    rank's failure, of whichever rank. ``clocks``: how far the clocks are apart, empty if nothing ties them
    together. ``apart``: calls of one number that processes made differently. ``here``: the host on which they
    were read. ``attempts``: how often the launcher started the ranks.
    """

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
    catalogue: str = ""
