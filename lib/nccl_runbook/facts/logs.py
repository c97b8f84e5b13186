"""Facts about what a failed job printed: who said what, where, and how far each rank came."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class LogLine:
    """One line as it was printed, without prefixes. ``line``: its number in ``file`` from 1; ``rank``, ``host``, ``time``: None or "" where
    nothing tells; ``time`` in seconds of an unknown day zero, to be compared with other lines only."""

    file: str
    line: int
    text: str
    rank: int | None = None
    host: str = ""
    time: float | None = None


@dataclasses.dataclass(frozen=True)
class Seen:
    """Lines that an expression matches: the first of each rank, at most MAX_LINES; ``times``: how often in all; ``resumed``: the same
    rank went on making progress after the last of them."""

    lines: list[LogLine]
    times: int
    resumed: bool = False


@dataclasses.dataclass(frozen=True)
class Timeout:
    """A watchdog line. ``seq``: sequence number, None before torch 1.12; times in milliseconds, ``ran_ms`` -1 where it is cut off."""

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

    ``enqueued`` and ``completed``: last sequence number by group; ``devices``: "cudaDev 0 nvmlDev 0 busId 60" of each communicator;
    ``first_error``: its first exception or fatal line, None for none; ``last``: its last line at all; ``ended``: it said that it was
    done; ``warned``: its watchdog spoke up, so the process lived then.
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
class FileRead:
    """One file, member of an archive, or standard input. ``problem``: why it could not be read, "" if it could; ``left_out``: a
    sentence about what was not read; ``kind``: what it is and who reads it, where it is no log."""

    name: str
    size_bytes: int
    lines: int = 0
    left_out: str = ""
    problem: str = ""
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class Template:
    """Lines that look like errors, alike but for their numbers, and match nothing that is known."""

    first: LogLine
    times: int


@dataclasses.dataclass(frozen=True)
class ClockOffset:
    """A clock against the first of the list: ``offset_s`` ahead, give or take ``error_s``, from ``events`` that both printed. ``clock``: a
    host, or a file where no host is named."""

    clock: str
    offset_s: float
    error_s: float
    events: int


@dataclasses.dataclass(frozen=True)
class Logs:
    """Everything that was read.

    ``seen``: expression -> lines; ``launcher``: "torchrun", "srun", ... or ""; ``foreign``: nothing in it looks like a job's log (no word
    of NCCL, torch, CUDA, a rank or a traceback); ``nccl_versions``: version -> who said so; ``failed`` and ``timeout``: the first
    fatal line,
    and the first watchdog line, of whichever rank; ``raised``: the first that is no echo of another rank's failure; ``clocks``: how far the
    clocks are apart, empty where nothing ties them together; ``apart``: calls of one number that processes made differently; ``here``:
    the host on which they were read; ``attempts``: how often the launcher started the ranks; ``words``: every word of the reporter and of
    the last kinds of lines that appeared -> where it stands first.
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
    words: dict[str, LogLine] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class RunProfile:
    """How a run was set up and how long things took, as its log tells.

    ``settings``: kind ("version", "environment", "plugin", "network", "channels") -> name -> values seen; ``transports``: channels by
    transport, numbers taken out; ``communicators``: communicators opened (distinct ids); ``syncs``: weight syncs timed; ``devices``: rank
    -> "cudaDev 0 busId 60"; ``times``: "init", "step", "sync" -> seconds, in order.
    """

    files: list[FileRead]
    settings: dict[str, dict[str, list[str]]] = dataclasses.field(default_factory=dict)
    transports: dict[str, int] = dataclasses.field(default_factory=dict)
    communicators: int = 0
    syncs: int = 0
    devices: dict[str, str] = dataclasses.field(default_factory=dict)
    times: dict[str, list[float]] = dataclasses.field(default_factory=dict)
