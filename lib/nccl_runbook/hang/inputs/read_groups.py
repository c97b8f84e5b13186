"""Operations of each process group, from the dumps of its members."""

import collections
import re
from collections.abc import Iterable

from nccl_runbook.core.facts import grouped
from nccl_runbook.core.redact import clipped
from nccl_runbook.hang.dumps.columns import Reading
from nccl_runbook.hang.dumps.last_steps import HISTORY
from nccl_runbook.hang.dumps.operations import Column
from nccl_runbook.hang.dumps.times import Times
from nccl_runbook.hang.facts import Channel, Count, Difference, Group, Track
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.logs.file import Limit
from nccl_runbook.logs.sources import SHORT_ENDS, sources
from nccl_runbook.logs.text import rank_of_name, who_says
from nccl_runbook.messages import excerpt

SHOWN = 16  # numbers of each group that are shown
MOST_DIFFERENCES = 8
Key = tuple[str, str, tuple[int, ...]]  # a group's name, description and members
_MINIBATCHES = re.compile(r"(?i)mini[-_ ]?batch(?:es)?\W{1,4}(\d{1,9})\b|\b(\d{1,9}) mini[-_ ]?batch")


def group_of(
    key: Key, certain: bool, readings: dict[int, Reading], names: dict[int, str], times: Times
) -> Group:
    """The facts of one group, from the readings of its ranks."""
    name, desc, ranks = key
    columns = {r: readings[r].columns[name] for r in ranks if r in readings and name in readings[r].columns}
    highest = max((c.first + len(c.calls) - 1 for c in columns.values()), default=0)
    start = max(1, highest - SHOWN + 1)
    sound = bool(columns) and all(
        readings[r].status.get(name) == column.reached() for r, column in columns.items()
    )
    done = max((column.reached()[1] for column in columns.values()), default=0)
    tracks = [
        _track(r, readings[r], columns[r], start, highest, names[r], times)
        if r in columns
        else _track_of_status(
            r, readings[r], readings[r].status.get(name) if sound else None, done, start, highest, names[r]
        )
        for r in ranks
        if r in readings
    ]
    return Group(
        name,
        desc,
        ranks=list(ranks),
        certain=certain,
        tracks=tracks,
        differences=_differences(columns, readings),
        tail_from=start,
    )


def _track_of_status(
    rank: int,
    reading: Reading,
    status: tuple[int, int] | None,
    done: int,
    start: int,
    highest: int,
    file: str,
) -> Track:
    """Track of a rank without an entry of the group, from its table of groups (``status``), if such tables
    agree with the entries of other ranks. A rank that issued fewer than those completed (``done``) may have
    been read earlier."""
    if status is None:
        return Track(rank, 0, 0, 0, bool(reading.entries) and not reading.wrapped, source=excerpt.short(file))
    issued, complete = status
    return Track(
        rank,
        issued,
        complete,
        0,
        issued == complete >= done,
        source=excerpt.short(file),
        tail="".join(
            "c" if s <= complete else "?" if s <= issued else "." for s in range(start, highest + 1)
        ),
    )


def _track(
    rank: int, reading: Reading, column: Column, start: int, highest: int, file: str, times: Times
) -> Track:
    last, done = (
        column.last.seq,
        max(column.done, column.first + column.states.rfind(b"c") if b"c" in column.states else 0),
    )
    letters = "".join(
        chr(column.states[s - column.first]) if column.first <= s <= last else "." if s > last else "?"
        for s in range(start, highest + 1)
    )
    return Track(
        rank=rank,
        enqueued=last,
        completed=done,
        joined=reading.joined(column),
        known=True,
        opened=times.op(rank, column.opened),
        last=times.op(rank, column.last),
        tail=letters,
        source=excerpt.short(file),
    )


def _differences(columns: dict[int, Column], readings: dict[int, Reading]) -> list[Difference]:
    """Numbers at which members called different things. Columns that hold the same bytes are
    compared at the speed of memory."""
    if len(columns) < 2:
        return []
    calls = {h: text for r in columns for h, text in readings[r].calls.items()}
    longest = columns[max(columns, key=lambda r: (len(columns[r].calls), -r))]
    differences = []
    for seq in sorted({seq for column in columns.values() for seq in _unlike(longest, column)})[
        :MOST_DIFFERENCES
    ]:
        by_call = grouped(
            (c.calls[seq - c.first], rank)
            for rank, c in columns.items()
            if c.first <= seq < c.first + len(c.calls)
        )
        before = _habit(columns, seq, by_call)
        if not any(
            before.values()
        ):  # nothing stands before it: what other groups of this purpose have there, then
            alike = (
                c
                for rank, r in readings.items()
                if rank not in columns
                for c in r.columns.values()
                if c.desc == longest.desc
            )
            there = collections.Counter(
                c.calls[seq - c.first] for c in alike if c.first <= seq < c.first + len(c.calls)
            )
            # one witness may be a culprit, too
            before = {call: there[call] if there[call] > 1 else 0 for call in by_call}
        differences.append(
            Difference(
                seq,
                {calls[h]: sorted(ranks) for h, ranks in by_call.items()},
                {calls[h]: n for h, n in before.items()},
                {calls[h]: calls[after] for h in by_call if (after := _next(longest, h)) is not None},
            )
        )
    return differences


def _unlike(left: Column, right: Column) -> list[int]:
    low, high = (
        max(left.first, right.first),
        min(left.first + len(left.calls), right.first + len(right.calls)),
    )
    a, b = (column.calls[low - column.first : high - column.first] for column in (left, right))
    if high <= low or a.tobytes() == b.tobytes():
        return []
    return [low + i for i, (x, y) in enumerate(zip(a, b)) if x != y][:MOST_DIFFERENCES]


def _habit(columns: dict[int, Column], seq: int, by_call: Iterable[int]) -> dict[int, int]:
    """How often each call had followed, in this group, what stands before ``seq``: on the
    rank that remembers most."""
    best = max(columns.values(), key=lambda c: min(seq, c.first + len(c.calls)) - c.first)
    end = seq - best.first
    before = best.calls[max(0, end - HISTORY) : end]
    pairs = collections.Counter(b for a, b in zip(before, before[1:]) if a == before[-1])
    return {call: pairs[call] for call in by_call}


def _next(column: Column, call: int) -> int | None:
    """What most often follows ``call`` on the rank that remembers most."""
    recent = column.calls[-HISTORY:]
    return next(
        (
            other
            for other, _ in collections.Counter(
                b for a, b in zip(recent, recent[1:]) if a == call
            ).most_common(1)
        ),
        None,
    )


def counts(paths: list[str] | str, names: set[str], limit: Limit) -> list[Count]:
    """The last number of minibatches that each rank reported."""
    last: dict[int, Count] = {}
    for source in (s for s in sources(paths, limit=limit) if s.name in names):
        matches = (
            (number, match)
            for rows in source.rows(ends=SHORT_ENDS)
            for number, raw in enumerate(rows, source.lines + 1)
            if (match := _MINIBATCHES.search(raw.decode("utf-8", "replace")))
        )
        for number, match in matches:
            who = who_says(match.string)
            rank = rank_of_name(source.name) if who.rank is None else who.rank
            if rank is not None:
                last[rank] = Count(
                    rank,
                    int(match[1] or match[2]),
                    LogLine(excerpt.short(source.name), number, clipped(who.text.strip(), 300), rank),
                )
    return [last[rank] for rank in sorted(last)]


def channels(readings: dict[int, Reading], members: Iterable[Key], times: Times) -> list[Channel]:
    """Open sends and receives between global ranks, both ends joined."""
    by_rank = {(name, rank): ranks for name, _, ranks in members for rank in ranks}
    sides = grouped(
        ((name, ranks[src], ranks[dst]), (sends, number, times.op(rank, op)))
        for rank, reading in sorted(readings.items())
        for (name, src, dst, sends), (number, op) in reading.sides.items()
        if max(src, dst) < len(ranks := by_rank.get((name, rank), ()))
        and ranks[src if sends else dst] == rank
    )
    opened = {ends: {sends: number for sends, number, _ in rows} for ends, rows in sides.items()}
    return [
        Channel(
            name,
            src,
            dst,
            both.get(True, 0 if src in readings else -1),
            both.get(False, 0 if dst in readings else -1),
            sides[name, src, dst][-1][2],
        )
        for (name, src, dst), both in sorted(opened.items())
    ]
