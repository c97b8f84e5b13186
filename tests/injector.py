"""Faults that the runbook cannot know of: another process stops or kills one rank of each world of a given size that it starts."""
from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from processes import children, start_time

SIGNALS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def worlds_below(pid: int) -> list[list[int]]:
    """Ranks that run now, one list a world, lowest pid (rank 0) first: processes forked from a warm one, which share its command line."""
    found = []
    for parent in children(pid):
        line = _cmdline(parent)
        ranks = sorted(c for c in children(parent) if line and _cmdline(c) == line and start_time(c))
        found += [ranks] if ranks else []
    return found


class Injector:
    """While open: ``after_s`` after a world of ``size`` ranks below ``pid`` is first seen, its rank ``rank`` gets the signal. ``hit``
    counts."""

    def __init__(self, pid: int, fault: str, size: int, rank: int, after_s: float) -> None:
        self.pid, self.signal, self.size, self.rank, self.after_s = pid, SIGNALS[fault], size, rank, after_s
        self.hit: list[int] = []
        self._seen: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Injector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            for ranks in worlds_below(self.pid):
                if len(ranks) == self.size and ranks[self.rank] not in self.hit:
                    self._act(ranks[self.rank])

    def _act(self, victim: int) -> None:
        if time.monotonic() - self._seen.setdefault(victim, time.monotonic()) >= self.after_s:
            os.kill(victim, self.signal)
            self.hit.append(victim)
