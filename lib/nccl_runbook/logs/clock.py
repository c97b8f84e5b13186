"""How far the clocks of hosts are apart, from what all of them print, or record, at the same moment."""

import collections
import re

from nccl_runbook.logs.facts import ClockOffset, LogLine

MAX_EVENTS = 20_000
LEAST = 3  # shared events: with fewer the error is a guess
# a synchronous step ends everywhere at once, and so does the set-up of a communicator
_STEP = re.compile(r"[Pp](?i:(?<=\bstep)|(?<=\b(g)lobal_step))[ :=#\[]{1,3}\d+\b")  # begins with a letter that few words hold
_COMM = re.compile(r"commId 0x([0-9a-f]+) - Init COMPLETE")


class Clocks:
    """When each clock saw each shared event; a clock is a host, or a file where nobody names the host."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, float]] = {}

    def take(self, line: LogLine, text: str) -> None:
        """Keep the line's time if it shows such an event."""
        found = None if line.time is None else _COMM.search(text) or _STEP.search(text)
        if found:
            self.note(f"{found[0]}{found[1]}".lower(), clock(line), line.time)

    def note(self, event: str, clock: str, at: float) -> None:
        """``clock`` saw the event ``at`` seconds."""
        if len(self._seen) < MAX_EVENTS or event in self._seen:
            self._seen.setdefault(event, {}).setdefault(clock, at)

    def offsets(self) -> list[ClockOffset]:
        """Every clock that shares enough events with the one that shares most, or with one that is tied to that; that one with 0."""
        shared = [times for times in self._seen.values() if len(times) > 1]
        if not (counts := collections.Counter(name for times in shared for name in times)):
            return []
        first = max(sorted(counts), key=lambda name: counts[name])
        tied = {first: ClockOffset(first, 0.0, 0.0, counts[first])}
        while more := _tied_to(tied, shared):
            tied |= more
        return [tied.pop(first), *(tied[name] for name in sorted(tied))]


def _tied_to(tied: dict[str, ClockOffset], shared: list[dict[str, float]]) -> dict[str, ClockOffset]:
    """Clocks that share enough events with those, and no others."""
    apart: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)  # seconds, and the error of the clock they are of
    for times in shared:
        known = min((tied[name] for name in times if name in tied), key=lambda one: (one.error_s, one.clock), default=None)
        for name in times if known else ():
            if name not in tied:
                apart[name].append((times[name] - times[known.clock] + known.offset_s, known.error_s))
    return {name: _offset(name, told) for name, told in apart.items() if len(told) >= LEAST}


def _offset(name: str, told: list[tuple[float, float]]) -> ClockOffset:
    import statistics  # takes 10 ms, and is asked for where several hosts share events

    middle = statistics.median(apart for apart, _ in told)
    error_s = max(abs(apart - middle) for apart, _ in told) + max(error for _, error in told)
    return ClockOffset(name, round(middle, 3), round(error_s, 3), len(told))


def clock(line: LogLine) -> str:
    """The name of the clock that stamped the line."""
    return line.host or line.file
