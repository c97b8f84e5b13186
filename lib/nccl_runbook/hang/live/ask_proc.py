"""Files of /proc, read without an error when a process ends."""

import contextlib
import os
from typing import Any, Callable, Iterator, List


def read(path: str, most: int = 1 << 22) -> str:
    """Text of a file in /proc; OSError if unreadable."""
    with open(path, "rb") as file:
        return file.read(most).decode("utf-8", "replace")


def unless_gone(otherwise: Any, ask: Callable[..., Any], *arguments: Any) -> Any:
    """What ``ask`` returns, or ``otherwise`` if the process ended meanwhile or is not readable."""
    try:
        return ask(*arguments)
    except OSError:
        return otherwise


def pids() -> Iterator[int]:
    """Every process of this pid namespace."""
    return map(int, filter(str.isdecimal, os.listdir("/proc")))


def stat_fields(path: str) -> List[str]:
    """Fields of /proc/PID/stat from the state on (field 3); OSError if the process is gone."""
    return read(path).rpartition(")")[2].split()


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended: a zombie is one that its parent has not asked for yet."""
    return unless_gone(["Z"], stat_fields, f"/proc/{pid}/stat")[0] != "Z"


def ancestors(pid: int) -> List[int]:
    """Parents of a process, nearest first."""
    parents: List[int] = []
    with contextlib.suppress(OSError):
        while pid > 1 and len(parents) < 64:
            pid = int(stat_fields(f"/proc/{pid}/stat")[1])
            parents.append(pid)
    return parents


def own_inodes(pid: int) -> set:
    """Inodes of the sockets that a process has open; empty without permission."""
    targets = {
        unless_gone("", os.readlink, f"/proc/{pid}/fd/{name}")
        for name in unless_gone([], os.listdir, f"/proc/{pid}/fd")
    }
    return {target[8:-1] for target in targets if target.startswith("socket:[")}
