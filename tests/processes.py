"""A way to see that a process is gone, by its pid and start time, and one to hold what a call costs on a machine that is shared."""
from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def quickest_s(call: Callable[[], Any], below_s: float, tries: int = 10) -> float:
    """Seconds of CPU of the quickest of up to so many calls; ends with the first below the bound.

    One call tells little: a crowded machine lengthens CPU time, too, by caches and clocks that are shared.
    """
    best = float("inf")
    for _ in range(tries):
        began = time.thread_time()
        call()
        best = min(best, time.thread_time() - began)
        if best < below_s:
            break
    return best


def start_time(pid: int) -> str | None:
    """The start time of a process in clock ticks since boot, None once it is gone or a zombie: with the pid its identity."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def gone(identities: dict[int, str | None], within_s: float = 5.0) -> bool:
    """Whether every process of {pid: start time} ends within so many seconds."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if all(start_time(pid) != started for pid, started in identities.items() if started):
            return True
        time.sleep(0.02)
    return False


def children(pid: int) -> list[int]:
    """Every descendant of a process, by /proc; none of one that has ended."""
    found = []
    with contextlib.suppress(OSError):  # it ended while we looked
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, below(task)):
                found += [child, *children(child)]
    return found


def below(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:  # that thread has just ended
        return []
