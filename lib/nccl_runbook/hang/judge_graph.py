"""Who waits for whom, and in which words: by the operations of dumps, or by saved stacks.

An edge goes from each rank with an operation that is not complete to every member that has not issued it.

A rank is accused where the record proves that others wait for it and that it waits for nobody. What is not
known (no dump, an overwritten ring, a dump older than what others completed) is never taken for absence.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterable

from nccl_runbook.core.facts import counted, grouped
from nccl_runbook.hang.facts import (
    Channel,
    Dump,
    Group,
    Hang,
    Op,
    Track,
    needs_all,
)

# an operation this young when the dump was written was under way, not stuck: seen
# in healthy Gloo dumps (torch 2.13)
YOUNG_S = 1.0
# shares of time in operations: a straggler of 200 ms gave 0.46 where the others had 0.98 or more, as torch
# looks for completions ten times a second (NCCL 2.28.9, torch 2.11, 4 H200, 2026-11-21)
WAITS_MOST, WAITS_LEAST, APART = 0.7, 0.6, 0.35
# as torch 2.2 to 2.13 name them (ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp), and the size of what has
# to agree: one changed byte in a file makes a call that does not exist
IS_CALL = re.compile(
    r"(all_?reduce|broadcast|reduce|all_?gather|reduce_scatter|all_?to_?all|gather|scatter|barrier|coalesced)"
    r"(_[a-z_]+)?( \d+ x (?:[A-Z]\w+|\?))?"
)
LATE_MS = (
    120.0  # by clocks set by ends that each rank's watchdog sees up to 100 ms late, in step with no other's
)
COSTS_MS = 20.0  # lost at every operation; below, a host that merely runs ahead looks the same


@dataclasses.dataclass(frozen=True)
class Wait:
    """``rank`` has ``op`` open. ``on``: members known not to have issued it, or whose GPU is still in an
    earlier one; ``perhaps``: members without evidence; if both are empty all are there and it still does not
    end. ``first``: no earlier operation is open."""

    rank: int
    group: str
    op: Op
    on: frozenset[int]
    perhaps: frozenset[int]
    p2p: bool = False
    first: bool = True


@dataclasses.dataclass(frozen=True)
class Graph:
    """All waits, by rank. ``unended``: waits for no rank, see _unended."""

    waits: dict[int, list[Wait]]
    unended: dict[int, Wait]

    def waited_for(self) -> dict[int, list[Wait]]:
        """Rank known to be missing -> waits for it."""
        return grouped((rank, wait) for wait in self.all() for rank in wait.on)

    def all(self) -> Iterable[Wait]:
        """Every wait of every rank."""
        return (wait for waits in self.waits.values() for wait in waits)


def _elsewhere(dumps: dict[int, Dump], ranks: Iterable[int], name: str) -> frozenset[int]:
    """Those of the ranks whose GPU is in something earlier than this operation."""
    return frozenset(r for r in ranks if r in dumps and dumps[r].order and dumps[r].order[0] != name)


def graph(hang: Hang) -> Graph:
    """The wait-for graph of these facts."""
    dumps = {d.rank: d for d in hang.dumps}
    waits = grouped(
        (wait.rank, wait)
        for wait in (
            *(wait for group in hang.groups for wait in _collectives(group, dumps)),
            *(wait for channel in hang.channels for wait in _point_to_point(channel, dumps)),
        )
        if wait
    )
    waited = {rank for every in waits.values() for wait in every for rank in wait.on}
    unended = {r: w for r, w in _unended(hang, dumps).items() if r in waited}
    return Graph(
        {r: sorted(w, key=lambda wait: not wait.first) for r, w in waits.items() if r not in unended}, unended
    )


def _unended(hang: Hang, dumps: dict[int, Dump]) -> dict[int, Wait]:
    """Ranks whose first open operation peers have completed, though no member completes it alone: their GPU
    ran it, or it could not have ended anywhere, and they do not see its end. Seen in NCCL dumps of torch
    2.8 after an error of the GPU. Where members called different things nothing follows, nor where most
    of them are in that state."""
    waits = {}
    for group in hang.groups:
        sure, differ = credible(group), first_difference(group)
        completed = max((t.completed for t in sure.values()), default=0)
        behind = {
            r: op
            for r, t in sure.items()
            if (op := t.opened)
            and needs_all(op.call)
            and op.state != "returned"
            and not is_young(op)
            and op.seq < differ
            and completed >= op.seq
        }
        if 2 * len(behind) <= len(sure):
            waits.update(
                {
                    r: Wait(r, group.name, op, frozenset(), frozenset())
                    for r, op in behind.items()
                    if r in dumps and dumps[r].order[:1] == [f"{group.name}:{op.seq}"]
                }
            )
    return waits


def first_difference(group: Group) -> float:
    """The lowest number at which members called different things; infinity if there is none."""
    return min((d.seq for d in group.differences), default=math.inf)


def credible(group: Group) -> dict[int, Track]:
    """Tracks that are up to date: they hold everything that others could only complete together with this
    rank."""
    reached = max((t.joined for t in group.tracks), default=0)
    return {t.rank: t for t in group.tracks if t.known and t.enqueued >= reached}


def is_young(op: Op) -> bool:
    """Whether the operation is younger than YOUNG_S seconds; False if its age is unknown."""
    return op.age_s is not None and op.age_s < YOUNG_S


def _collectives(group: Group, dumps: dict[int, Dump]) -> Iterable[Wait | None]:
    """The wait of each member. Thousands wait in the same operation: what they wait for is looked up once."""
    sure = credible(group)
    unknown = frozenset(set(group.ranks) - set(sure))

    @functools.cache
    def others(seq: int) -> tuple[frozenset[int], frozenset[int]]:
        """Members that have not come to it, and those whose GPU is in something earlier."""
        return frozenset(r for r, t in sure.items() if t.enqueued < seq), _elsewhere(
            dumps,
            [r for r, t in sure.items() if t.opened and t.opened.seq <= seq],
            f"{group.name}:{seq}",
        )

    for track in group.tracks:
        op = track.opened
        if op is None or track.rank not in sure or is_young(op):
            continue
        late, elsewhere = others(op.seq)
        # its dump is as old as the operation: it may have come right after
        unsure = {
            r
            for r in (late if op.created_ns else ())
            if r in dumps and (at := dumps[r].written) is not None and at - op.created_ns / 1e9 < YOUNG_S
        }
        missing = late - unsure if unsure else late
        if op.state == "returned" and not missing and all(d.seq != op.seq for d in group.differences):
            continue  # it came back, and nothing shows that it had to wait
        yield Wait(
            track.rank,
            group.name,
            op,
            missing or elsewhere - {track.rank},
            unknown | unsure if unsure else unknown,
            first=not _elsewhere(dumps, [track.rank], f"{group.name}:{op.seq}"),
        )


def _point_to_point(channel: Channel, dumps: dict[int, Dump]) -> Iterable[Wait]:
    """The end with more open operations on a channel waits for the other end; with equal numbers, the other
    end's GPU is late."""
    op, name = channel.first, f"{channel.group}:p2p"
    if op is None or is_young(op):
        return
    for rank, other, mine, theirs in (
        (channel.src, channel.dst, channel.sends_open, channel.recvs_open),
        (channel.dst, channel.src, channel.recvs_open, channel.sends_open),
    ):
        if mine > 0:
            yield Wait(
                rank,
                channel.group,
                op=op,
                on=frozenset({other}) if mine > theirs >= 0 else _elsewhere(dumps, [other], name),
                perhaps=frozenset({other} if theirs < 0 else ()),
                p2p=True,
                first=not _elsewhere(dumps, [rank], name),
            )


# --- words for groups, calls and places


def places(calls: collections.Counter[str]) -> str:
    """Where ranks wait, with the number of ranks if there are several places."""
    return ", ".join(
        call + (f" ({counted(n, 'rank')})" if len(calls) > 1 else "") for call, n in calls.most_common(4)
    )


def called(hang: Hang, wait: Wait) -> str:
    """An operation in words: "ALL_REDUCE 7 of group 0 (default_pg)"."""
    name = wait.op.call if wait.p2p else f"{wait.op.call.split(' ')[0].upper()} {wait.op.seq}"
    return f"{name} of {group_name(hang, wait.group)}"


def group_name(hang: Hang, name: str) -> str:
    """The group's name, with its description if it has one."""
    desc = next((g.desc for g in hang.groups if g.name == name), "")
    return (f"group {name}" if name else "a group without a name") + (
        f" ({desc})" if desc and desc not in (name, "undefined") else ""
    )


def source_of(hang: Hang, wait: Wait) -> str:
    """The file that shows a wait."""
    track = track_of(hang, wait.group, wait.rank)
    return track.source if track else ""


def track_of(hang: Hang, group: str, rank: int) -> Track | None:
    """The rank's track in the group of this name, or None."""
    return next((t for g in hang.groups if g.name == group for t in g.tracks if t.rank == rank), None)


# --- stacks that were saved, without a dump
