"""When dumps were written and operations issued, on one clock, though each host has its own."""

import dataclasses
import math
import statistics

from nccl_runbook.core.facts import grouped
from nccl_runbook.hang.dumps.columns import Reading
from nccl_runbook.hang.dumps.last_steps import ISSUED, LEAST
from nccl_runbook.hang.facts import Op
from nccl_runbook.logs.facts import ClockOffset
from nccl_runbook.logs.text import Clocks

# less is no difference: torch looks for ends ten times a second, and a file system may have whole seconds
SKEW_S = 1.0


class Times:
    """When each dump was written (file time) and each operation issued, on one clock: the median of the
    ranks' clocks."""

    def __init__(self, readings: dict[int, Reading], stamps: dict[int, float]) -> None:
        """``stamps``: the time of each rank's file."""
        self.clocks = _clocks(readings)
        self._ahead = {int(c.clock): c.offset_s for c in self.clocks}
        # nothing ties the others
        stamps = {rank: at for rank, at in stamps.items() if rank in self._ahead or not self.clocks}
        own = {rank: at - self._ahead.get(rank, 0.0) for rank, at in stamps.items()}
        # a file has the time of its host, or of a common file server: whichever brings the dumps
        # of one job closer together
        self.written = min(
            stamps, own, key=lambda times: max(times.values(), default=0.0) - min(times.values(), default=0.0)
        )
        error = max((c.error_s for c in self.clocks), default=0.0)
        self.written = {rank: at - error for rank, at in self.written.items()}
        newest = {rank: readings[rank].newest_ns / 1e9 - self._ahead.get(rank, 0.0) for rank in stamps}
        # a file older than what stands in it shows that the times are not to be trusted
        if any(self.written[rank] < newest[rank] - error - SKEW_S for rank in stamps):
            self.written = {}

    def op(self, rank: int, op: Op | None) -> Op | None:
        """What a dump records of an operation, on that clock, or None. Its age is a lower bound."""
        if op is None:
            return None
        created = op.created_ns - int(self._ahead.get(rank, 0.0) * 1e9) if op.created_ns else 0
        age = round(self.written[rank] - created / 1e9, 3) if created and rank in self.written else None
        return dataclasses.replace(op, age_s=age, created_ns=created)


def _clocks(readings: dict[int, Reading]) -> list[ClockOffset]:
    """How far the clock of each rank is ahead of the middle one, by the ends of shared operations;
    [] where all are together."""
    clocks = Clocks()
    for rank, reading in sorted(readings.items()):
        for event, (issued_ns, ended_ns) in reading.ends.items():
            clocks.note(event, str(rank), (issued_ns if event.startswith(ISSUED) else ended_ns) / 1e9)
    offsets = clocks.offsets()
    middle = statistics.median_low([c.offset_s for c in offsets]) if offsets else 0.0
    offsets = [dataclasses.replace(c, offset_s=round(c.offset_s - middle, 3)) for c in offsets]
    return offsets if any(abs(c.offset_s) > max(SKEW_S, c.error_s) for c in offsets) else []


def earlier(readings: dict[int, Reading], stamps: dict[int, float]) -> dict[int, float]:
    """Rank -> seconds by which its dump ends before another begins, although it completed something that
    needs that one, or its world differs: it comes from an earlier attempt of the job. A clock that is off by
    more than the run looks the same, so such a dump proves nothing; entries later than the file prove a
    wrong clock. ``stamps``: as for Times."""
    began = grouped(
        (_common(group, reading), (reading.oldest_ns, column.first, reading.members.get(group, ())))
        for rank, reading in readings.items()
        if stamps.get(rank, math.inf) > reading.newest_ns / 1e9 - SKEW_S
        for group, column in reading.columns.items()
    )
    latest = {group: max(rows) for group, rows in began.items()}
    before: dict[int, float] = {}
    for rank, reading in readings.items():
        for group, column in reading.columns.items():
            at, first, members = latest.get(_common(group, reading), (0, 0, ()))
            follows = first <= reading.joined(column) or members != reading.members.get(group, ())
            if follows and at > reading.until_ns + SKEW_S * 1e9:
                before[rank] = max(before.get(rank, 0.0), (at - reading.until_ns) / 1e9)
    return before


def _common(group: str, reading: Reading) -> object:
    """What all ranks of one attempt share: the default group. Names of other groups may be used by several
    sets of ranks."""
    members = reading.members.get(group, ("", ()))
    return members[0] if members[0] == "default_pg" else (group, members)


def latecomers(readings: dict[int, Reading]) -> dict[int, tuple[float, float, float]]:
    """Rank -> (share of recent time in which all others had issued an operation and this rank neither had
    nor was in one; median ms of that; how many of these its clock may explain), if its arrival soon ended
    the operation. Clocks are aligned by ends that all ranks share; Gloo records none, see _least."""
    blocking = all(r.gloo for r in readings.values())
    shared = set.intersection(*(set(r.ends) for r in readings.values())) if len(readings) > 1 else set()
    events = [event for event in shared if blocking or not event.startswith(ISSUED)]
    if len(events) < LEAST:
        return {}
    ahead = _least(readings) if blocking else _by_ends(readings, events)
    gaps = []
    for event in events:
        came_at = sorted((r.ends[event][0] - ahead[rank], rank) for rank, r in readings.items())
        (before, _), (came, last) = came_at[-2:]
        ended = min(r.ends[event][1] - ahead[rank] for rank, r in readings.items())
        gaps.append((last, (before, came, ended)))
    span = max(came for _, (_, came, _) in gaps) - min(before for _, (before, _, _) in gaps)
    # the last figure: by how many ms more than that its clock may be ahead of any other
    return {
        rank: (
            *row,
            round(
                min(
                    row[1],
                    max(
                        _ahead(readings[rank], other)[1] - ahead[rank] + ahead[r]
                        for r, other in readings.items()
                        if r != rank
                    )
                    / 1e6,
                ),
                1,
            )
            if blocking
            else 0.0,
        )
        for rank, rows in grouped(gaps).items()
        if span and (row := _lateness(sorted(rows), span))
    }


def _by_ends(readings: dict[int, Reading], events: list[str]) -> dict[int, float]:
    """By how many ns each clock is ahead of that in the middle: what all see end, ends at once."""
    ended = {event: statistics.median(r.ends[event][1] for r in readings.values()) for event in events}
    return {
        rank: statistics.median(r.ends[event][1] - ended[event] for event in events)
        for rank, r in readings.items()
    }


def _least(readings: dict[int, Reading]) -> dict[int, float]:
    """Offset from the first rank's clock, the smallest that the order of calls allows: the next call of any
    rank comes after all made this one. If non-blocking calls contradict that, clocks are assumed to
    agree."""
    first = readings[min(readings)]
    bounds = {rank: _ahead(reading, first) for rank, reading in readings.items()}
    return {rank: max(least, min(0.0, most)) for rank, (least, most) in bounds.items()}


def _ahead(one: Reading, other: Reading) -> tuple[float, float]:
    """By how many ns the clock of ``one`` is ahead at least, and at most."""
    shared = one.ends.keys() & other.ends.keys()
    least, most = (
        max(one.ends[e][0] - other.ends[e][1] for e in shared),
        min(one.ends[e][1] - other.ends[e][0] for e in shared),
    )
    return (least, most) if least <= most or one is other else (-math.inf, math.inf)


def _lateness(gaps: list[tuple[float, float, float]], span: float) -> tuple[float, float] | None:
    """From (all others came, this rank came, the operation ended), in ns. None if most operations ended long
    after it came: no rank waited for it then."""
    alone, until = 0.0, gaps[0][2]
    for before, came, end in gaps[
        1:
    ]:  # not while an earlier one was under way: who runs less far ahead of its GPU comes later, too
        alone, until = alone + max(0.0, came - max(before, until)), max(until, came, end)
    late = statistics.median(came - before for before, came, _ in gaps)
    return (
        (round(alone / span, 3), round(late / 1e6, 1))
        if statistics.median(end - came for _, came, end in gaps) < late
        else None
    )
