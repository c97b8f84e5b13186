"""Facts about texts that a job left: files, lines, clocks."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class LogLine:
    """One printed line without prefixes. ``line``: number in ``file`` from 1; ``rank``, ``host``, ``time``:
    None or empty if unknown; ``time``: seconds from an unknown day zero, only to compare with other
    lines."""

    file: str
    line: int
    text: str
    rank: int | None = None
    host: str = ""
    time: float | None = None


@dataclasses.dataclass(frozen=True)
class FileRead:
    """One file, archive member, or standard input. ``problem``: why it could not be read, else empty;
    ``left_out``: a sentence about unread parts; ``kind``: what it is and who reads it, if it is no log."""

    name: str
    size_bytes: int
    lines: int = 0
    left_out: str = ""
    problem: str = ""
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class ClockOffset:
    """A clock against the first of the list: ``offset_s`` seconds ahead, with error ``error_s``, from
    ``events`` that both printed. ``clock``: a host, or a file without a known host."""

    clock: str
    offset_s: float
    error_s: float
    events: int
