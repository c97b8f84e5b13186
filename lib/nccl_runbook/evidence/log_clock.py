"""How far the clocks of hosts are apart, from what all of them print at the same moment."""

from __future__ import annotations

import re
import statistics

from nccl_runbook.facts.logs import ClockOffset, LogLine

MAX_EVENTS = 20_000
LEAST = 3  # shared events: with fewer the error is a guess
# a synchronous step ends everywhere at once, and so does the set-up of a communicator
_STEP = re.compile(r"(?i)\b(?:global_)?step[ :=#\[]{1,3}(\d+)\b")
_COMM = re.compile(r"commId 0x([0-9a-f]+) - Init COMPLETE")


class Clocks:
    """When each clock saw each shared event; a clock is a host, or a file where nobody names the host."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, float]] = {}

    def take(self, line: LogLine, text: str) -> None:
        """Keep the line's time if it tells of such an event."""
        if line.time is None:
            return
        found = _COMM.search(text) or _STEP.search(text)
        if not found or (len(self._seen) >= MAX_EVENTS and found.group(0) not in self._seen):
            return
        self._seen.setdefault(found.group(0).lower(), {}).setdefault(clock(line), line.time)

    def offsets(self) -> list[ClockOffset]:
        """Every clock that shares enough events with the one that shares most, that one with 0."""
        counts: dict[str, int] = {}
        for times in self._seen.values():
            for name in times if len(times) > 1 else ():
                counts[name] = counts.get(name, 0) + 1
        if not counts:
            return []
        first = max(sorted(counts), key=lambda name: counts[name])
        apart = {n: [t[n] - t[first] for t in self._seen.values() if n in t and first in t] for n in sorted(counts) if n != first}
        return [ClockOffset(first, 0.0, 0.0, counts[first]), *(_offset(n, d) for n, d in apart.items() if len(d) >= LEAST)]


def _offset(name: str, apart: list[float]) -> ClockOffset:
    middle = statistics.median(apart)
    return ClockOffset(name, round(middle, 3), round(max(abs(d - middle) for d in apart), 3), len(apart))


def clock(line: LogLine) -> str:
    """The name of the clock that stamped the line."""
    return line.host or line.file
