"""Read a log that somebody handed over: bounded, any bytes, nothing in it is executed."""

from __future__ import annotations

import collections
import dataclasses
import gzip
import os
import re
import stat
import zlib
from typing import BinaryIO

from nccl_runbook.core.facts import Gap

PART_BYTES = 2 << 20  # of the beginning and of the end
UNPACKED_BYTES = 256 << 20  # a gzip of a few MB may hold a terabyte of zeros
LINE_CHARACTERS = 1000  # longer ones are cut into pieces, so that no expression meets an endless line
_GZIP = b"\x1f\x8b"
HELD = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")  # what <(env) gives


@dataclasses.dataclass(frozen=True)
class LogLines:
    """``lines``: (number, text); numbers count from 1, or from the end as -1, -2, ... after a part that was left out."""

    size_bytes: int
    lines: list[tuple[int, str]]
    left_out: str = ""


def named(log: str) -> list[str]:
    """The paths in a text field, separated by colons; one with a colon in its name is one path if it exists."""
    text = log.strip()
    return [text] if os.path.lexists(os.path.expanduser(text)) else [p for p in text.split(":") if p]


def opened(path: str, piped: bool = False) -> BinaryIO | Gap:
    """The regular file; a Gap of one sentence if it cannot be opened, or is none. ``piped``: also a pipe that the shell holds open."""
    try:
        # a pipe without a writer would wait for ever
        handle = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return Gap("absent", f"there is no file {path}")
    except PermissionError:
        return Gap("no-permission", f"{path} may not be read by this user")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        return Gap("failed", f"{path!r} cannot be opened: {getattr(error, 'strerror', None) or error}")
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode) or piped and stat.S_ISFIFO(mode) and path.startswith(HELD):
        return open(handle, "rb")
    os.close(handle)
    what = "a directory: name one file in it" if stat.S_ISDIR(mode) else "not a regular file: write its text to one first"
    return Gap("failed", f"{path} is {what}")


def read(path: str) -> LogLines | Gap:
    """The first and last 2 MiB of a log, plain or gzip, as lines; a Gap of one sentence if it cannot be read."""
    opening = opened(path)
    if isinstance(opening, Gap):
        return opening
    with opening as file:
        if re.match(rb"BZh[1-9](?:1AY&|\x17rE8)|\xfd7zXZ" + rb"|PK\x03\x04" * path.lower().endswith(".zip"), file.peek(8)):
            return Gap("not-run", f"{path} is packed: 07-logs reads it")
        try:
            return _read(file, os.fstat(file.fileno()).st_size)
        except (OSError, zlib.error, EOFError) as error:
            return Gap("failed", f"{path} cannot be read: {getattr(error, 'strerror', None) or error}")


def _read(file: BinaryIO, size: int) -> LogLines:
    packed = file.read(2) == _GZIP
    file.seek(0)
    head, tail, left_out = _unpack(file) if packed else _ends(file, size)
    lines = _numbered(head, 1)
    if tail:
        lines += _numbered(tail.partition(b"\n")[2] or tail, -1)
    return LogLines(size, lines, left_out)


def _ends(file: BinaryIO, size: int) -> tuple[bytes, bytes, str]:
    head = file.read(2 * PART_BYTES if size <= 2 * PART_BYTES else PART_BYTES)
    if size <= 2 * PART_BYTES:
        return head, b"", ""
    file.seek(size - PART_BYTES)
    return head, file.read(PART_BYTES), f"{_mib(size - 2 * PART_BYTES)} between the first and the last {_mib(PART_BYTES)} were not read"


def _unpack(file: BinaryIO) -> tuple[bytes, bytes, str]:
    """Both ends of what is packed; a damaged or endless archive gives what came before."""
    head, tail, total, left_out = b"", collections.deque(maxlen=PART_BYTES >> 16), 0, ""
    with gzip.GzipFile(fileobj=file) as unpacked:
        try:
            while chunk := unpacked.read(1 << 16):
                total += len(chunk)
                if len(head) < PART_BYTES:
                    head += chunk
                else:
                    tail.append(chunk)
                if total >= UNPACKED_BYTES:
                    left_out = f"it was unpacked up to {_mib(total)} and no further"
                    break
        except (OSError, EOFError, zlib.error):
            if not total:
                raise
            left_out = f"the archive is damaged after {total} bytes"
    kept = b"".join(tail)
    if total <= len(head) + len(kept):
        return head + kept, b"", left_out
    middle = f"{_mib(total - len(head) - len(kept))} in the middle were not read"
    return head, kept, f"{middle}; {left_out}" if left_out else middle


def _numbered(part: bytes, start: int) -> list[tuple[int, str]]:
    """Lines with numbers from ``start`` up; from -1 backwards for the end of a file. Progress bars (\\r) share their line's number."""
    rows = part.decode("utf-8", "replace").split("\n")
    if rows and not rows[-1]:
        rows.pop()
    first = start if start > 0 else -len(rows)
    return [(first + index, piece) for index, row in enumerate(rows) for piece in _pieces(row)]


def _pieces(row: str) -> list[str]:
    # pieces overlap, so that a message across a cut is whole in one of them
    step = LINE_CHARACTERS // 2
    return [text[at : at + LINE_CHARACTERS] for text in row.split("\r") if text for at in range(0, max(1, len(text) - step), step)]


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
