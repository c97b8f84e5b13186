"""Facts about texts that a job left: files, lines, clocks."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class LogLine:
    """One line as it was printed, without prefixes. ``line``: its number in ``file`` from 1; ``rank``,
    ``host``, ``time``: None or "" where nothing tells; ``time`` in seconds of an unknown day zero,
    to be compared with other lines only."""

    file: str
    line: int
    text: str
    rank: int | None = None
    host: str = ""
    time: float | None = None


@dataclasses.dataclass(frozen=True)
class FileRead:
    """One file, member of an archive, or standard input. ``problem``: why it could not be read,
    "" if it could; ``left_out``: a sentence about what was not read; ``kind``: what it is and who
    reads it, where it is no log."""

    name: str
    size_bytes: int
    lines: int = 0
    left_out: str = ""
    problem: str = ""
    kind: str = ""


@dataclasses.dataclass(frozen=True)
class ClockOffset:
    """A clock against the first of the list: ``offset_s`` ahead, give or take ``error_s``, from ``events``
    that both printed. ``clock``: a host, or a file where no host is named."""

    clock: str
    offset_s: float
    error_s: float
    events: int
