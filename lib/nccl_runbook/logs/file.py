"""Open or read a file that somebody handed over, if it is one."""

import os
import select
import stat
import time
from typing import BinaryIO

from nccl_runbook.core.facts import Gap

PIPE_S = 10.0  # until whoever writes to a pipe has to be done
HELD = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")  # what <(env) gives


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
        return Gap("no-permission", f"{path} is not readable for this user")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        return Gap("failed", f"{path!r} cannot be opened: {getattr(error, 'strerror', None) or error}")
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode) or piped and stat.S_ISFIFO(mode) and path.startswith(HELD):
        return open(handle, "rb")
    os.close(handle)
    what = "a directory: name one file in it" if stat.S_ISDIR(mode) else "not a regular file: write its text to a file first"
    return Gap("failed", f"{path} is {what}")


def text_of(path: str, most_bytes: int, purpose: str) -> str | Gap:
    """The text of a file, or of a pipe that the shell holds open, as it stands. ``purpose``: what a larger one is too
    large for, in words."""
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
                return data.decode("utf-8", "replace")
            data += block
    return Gap("unsupported", f"{path} is larger than {most_bytes >> 20} MiB, too large for {purpose}")


def mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
