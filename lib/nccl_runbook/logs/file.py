"""Open or read a file that somebody handed over, if it is one, and how much
of everything is read for one answer."""

import collections
import contextlib
import dataclasses
import os
import re
import select
import stat
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, ClassVar

from nccl_runbook.core.facts import Gap
from nccl_runbook.logs.encoding import as_utf8

PIPE_S = 10.0  # seconds until the writer of a pipe has to finish
READ_S = 60.0  # what is made to be slow must not hold up the reader
# logs unpack to 10 to 40 times their size (gzip -9, xz), a bomb to 1,000 times (gzip) or more: of that
# at most this many bytes and times are read, in this many CPU seconds
UNPACKED_BYTES, UNPACKED_TIMES, UNPACKED_S = 16 << 20, 100, 1.0
DIRECTORY_BYTES = 4 << 20  # of a zip: 40,000 files
HELD = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")  # what <(env) gives


class Spent(Exception):
    """The limit of this answer is reached; the message says which."""


@dataclasses.dataclass(eq=False)
class Limit:
    """How much is read for one answer. All passes share the time, all files of a pass share ``read`` (bytes
    by kind). ``now``: name of what is being read."""

    now: ClassVar[str] = ""

    within_s: float = READ_S
    patient_until: float = dataclasses.field(default_factory=lambda: time.process_time() + UNPACKED_S)
    read: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def __post_init__(self) -> None:
        self.until = time.monotonic() + min(self.within_s, READ_S)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A context for readers with limits of their own (dumps): their time does not count."""
        began = time.monotonic()
        yield
        self.until += time.monotonic() - began


class Metered:
    """A file read within a limit. ``kind``: its bytes are "packed", "unpacked", or "plain" for neither."""

    def __init__(self, file: Any, limit: Limit, kind: str) -> None:
        self._limit, self._kind = limit, kind
        # short reads keep what was unpacked before a damage; a list of files is read as a whole
        self._get = getattr(file, "read1", file.read) if kind == "unpacked" else file.read
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes; Spent once the limit is reached."""
        read = self._limit.read
        beyond = UNPACKED_BYTES if time.process_time() < self._limit.patient_until else 0
        if size > DIRECTORY_BYTES:
            raise Spent(
                f"the archive's list of files, or the name of a file, is larger than {mib(DIRECTORY_BYTES)}"
            )
        if time.monotonic() > self._limit.until:
            raise Spent("the time limit was reached")
        if read["unpacked"] > beyond + UNPACKED_TIMES * read["packed"]:
            raise Spent(f"the archive unpacks to more than {UNPACKED_TIMES} times its size")
        data = self._get(size)
        read[self._kind] += len(data)
        return data


def named(log: str) -> list[str]:
    """Paths in a text field, separated by colons; a path that exists may contain colons."""
    text = log.strip()
    return [text] if os.path.lexists(os.path.expanduser(text)) else [p for p in text.split(":") if p]


def waits(path: str) -> bool:
    """Whether this is a kernel file whose reader may block for the next line, such as /proc/kmsg."""
    real = os.path.realpath(path)
    with contextlib.suppress(OSError):  # it may be gone by now
        return os.path.isfile(real) and not (
            os.path.getsize(real) or os.statvfs(real).f_blocks or re.search(r"/proc/\d+/environ$", real)
        )
    return False


def opened(path: str, piped: bool = False) -> BinaryIO | Gap:
    """The regular file, opened; a Gap with one sentence if that fails or it is no regular file. ``piped``:
    also accept a pipe that the shell holds open."""
    try:
        # a pipe without a writer would wait for ever
        handle = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return Gap("absent", f"there is no file {path}")
    except PermissionError:
        return Gap("no-permission", f"{path} is not readable for this user")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        return Gap("failed", f"{path!r} cannot be opened: {getattr(error, 'strerror', None) or error}")
    mode = os.fstat(handle).st_mode
    if (stat.S_ISREG(mode) and not waits(os.path.expanduser(path))) or (
        piped and stat.S_ISFIFO(mode) and path.startswith(HELD)
    ):
        return open(handle, "rb")
    os.close(handle)
    what = (
        "a directory. Name one file in it"
        if stat.S_ISDIR(mode)
        else "not a regular file. Write its text to a file first"
    )
    return Gap("failed", f"{path} is {what}")


def text_of(path: str, most_bytes: int, purpose: str) -> str | Gap:
    """Text of a file, or of a pipe that the shell holds open, or a Gap. ``purpose``: what a larger file is
    too large for, in words."""
    opening = opened(path, piped=True)
    if isinstance(opening, Gap):
        return opening
    data, until = bytearray(), time.monotonic() + PIPE_S
    with opening as file:
        while len(data) <= most_bytes:
            if not select.select([file], [], [], max(0.0, until - time.monotonic()))[0]:
                return Gap("timed-out", f"{path} is a pipe that did not end within {PIPE_S:g} s")
            try:
                block = os.read(file.fileno(), most_bytes + 1 - len(data))
            except OSError as error:
                return Gap("failed", f"{path} cannot be read: {error.strerror}")
            if not block:
                return as_utf8(bytes(data)).decode("utf-8", "replace")
            data += block
    return Gap("unsupported", f"{path} is larger than {most_bytes >> 20} MiB, too large for {purpose}")


def mib(size: int) -> str:
    """ "12.3 MiB" (1 MiB = 1048576 bytes)."""
    return f"{size / (1 << 20):.1f} MiB"
