"""A way to see that a process is gone, by its pid and start time, and one to hold what a call costs on a machine that is shared."""
from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


STANDARD = [sys.executable, "-I", "-c", "import asyncio, email.message, http.client, logging, unittest, xmlrpc.client"]
# seconds of CPU of STANDARD on the machine for which the limits were set: derived, as `env` took 0.28 s there and takes 3.1 times STANDARD
# (the quickest of eight each, 2 cores, CPython 3.11, 2026-11-29)
USUAL_S = 0.09
WORK = [sys.executable, "-I", "-c", r"""
import json, re
secret = re.compile(r"(?i)(?<![\w.])(?:token|secret|key)[=:]|[\w+/~.-]{30}")
rows = [{"rank": n, "text": f"host-{n}: rank {n} at 10:00:{n} waits for {n * n} of {n}"} for n in range(30000)]
assert not any(secret.search(row["text"]) for row in json.loads(json.dumps(rows)))
"""]
# the same of WORK: derived, as `triage` of 12,000 hosts took less than 5 s there at b9806b47, and that takes 31 times WORK
# (median of five pairs, 2 cores, CPython 3.11, 2026-12-01)
USUAL_WORK_S = 0.16


def quickest_s(call: Callable[[], Any], below_s: float, tries: int = 10) -> float:
    """Seconds of CPU of the quickest of up to so many calls, as on the usual machine; ends with the first below the bound.

    One call tells little: a crowded machine lengthens CPU time, too, by caches and clocks that are shared.
    """
    return _quickest_s(call, time.thread_time, below_s, tries)


def command_s(command: list[str], below_s: float, **options: Any) -> tuple[float, subprocess.CompletedProcess[str]]:
    """As ``quickest_s``, of a command with all its threads, and how it ended at last."""
    ended = []
    took = _quickest_s(lambda: ended.append(subprocess.run(command, capture_output=True, text=True, **options)), _of_children, below_s, 10)
    return took, ended[-1]


def _quickest_s(call: Callable[[], Any], clock: Callable[[], float], below_s: float, tries: int) -> float:
    """The quickest try, divided by how slow the machine was at its best; ``below_s``: the bound that is asserted."""
    took, slow = [], []
    while len(took) < tries and (not took or min(took) / min(slow, default=1.0) >= below_s):
        began = clock()
        call()
        took.append(clock() - began)
        slow += [slowness()] if min(took) >= below_s else []
    return min(took) / min(slow, default=1.0)


def slowness() -> float:
    """How many times longer than the usual machine this one needs at present, at least 1: a limit means the same on both. The worse of
    a start and of work on texts, which neighbours slow down unlike."""
    return max(1.0, *(_took_s(command, 3) / usual for command, usual in ((STANDARD, USUAL_S), (WORK, USUAL_WORK_S))))


def _took_s(command: list[str], times: int) -> float:
    began = _of_children()
    for _ in range(times):
        subprocess.run(command, check=True)
    return (_of_children() - began) / times


def crowded() -> float:
    """How many times longer a start of an interpreter takes by the clock than on the usual machine of its own, at least 1: a limit of a
    wait means the same while others use the machine."""
    began = time.monotonic()
    subprocess.run(STANDARD, check=True)
    return max(1.0, (time.monotonic() - began) / USUAL_S)


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
