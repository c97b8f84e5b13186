"""Who waits for whom, and in which words: by the operations of dumps, or by saved stacks.

An edge goes from each rank with an operation that is not complete to every member that has not issued it.

A rank is accused where the record proves that others wait for it and that it waits for nobody. What is not
known (no dump, an overwritten ring, a dump older than what others completed) is never taken for absence.
"""

import collections
import dataclasses
import math
import pathlib
import re
import sys
from collections.abc import Iterable, Sequence

from nccl_runbook.core.facts import counted, grouped
from nccl_runbook.core.findings import Evidence
from nccl_runbook.hang.facts import (
    Channel,
    Count,
    Difference,
    Dump,
    Group,
    Hang,
    Op,
    Stack as SavedStack,
    Track,
    needs_all,
)
from nccl_runbook.hang.live.facts import Frame, Stack
from nccl_runbook.hang.live.judge import never_came
from nccl_runbook.hang.live.judge_ranks import (
    DISTRIBUTED,
    HOST_WORK,
    Picture,
    RankView,
    own_frame,
    waits_in,
    words_of,
)

# an operation this young when the dump was written was under way, not stuck: seen
# in healthy Gloo dumps (torch 2.13)
YOUNG_S = 1.0
# shares of time in operations: a straggler of 200 ms gave 0.46 where the others had 0.98 or more, as torch
# looks for completions ten times a second (NCCL 2.28.9, torch 2.11, 4 H200, 2026-11-21)
WAITS_MOST, WAITS_LEAST, APART = 0.7, 0.6, 0.35
# as torch 2.2 to 2.13 name them (ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp), and the size of what has
# to agree: one changed byte in a file makes a call that is none
_IS_CALL = re.compile(
    r"(all_?reduce|broadcast|reduce|all_?gather|reduce_scatter|all_?to_?all|gather|scatter|barrier|coalesced)"
    r"(_[a-z_]+)?( \d+ x (?:[A-Z]\w+|\?))?"
)
LATE_MS = (
    120.0  # by clocks set by ends that each rank's watchdog sees up to 100 ms late, in step with no other's
)
COSTS_MS = 20.0  # lost at every operation; below, a host that merely runs ahead looks the same


@dataclasses.dataclass(frozen=True)
class Wait:
    """``rank`` has ``op`` open. ``on``: members known not to have issued it, or whose GPU is still
    in something earlier; ``perhaps``: members of whom nothing is known; neither: all are there, and it still
    does not end. ``first``: nothing issued earlier is open."""

    rank: int
    group: str
    op: Op
    on: frozenset[int]
    perhaps: frozenset[int]
    p2p: bool = False
    first: bool = True


@dataclasses.dataclass(frozen=True)
class Graph:
    """All waits by rank. ``unended``: see _unended; these wait for nobody."""

    waits: dict[int, list[Wait]]
    unended: dict[int, Wait]

    def waited_for(self) -> dict[int, list[Wait]]:
        """Known-to-be-missing rank -> the waits for it."""
        return grouped((rank, wait) for wait in self.all() for rank in wait.on)

    def all(self) -> Iterable[Wait]:
        return (wait for waits in self.waits.values() for wait in waits)


_Dumps = dict[int, Dump]  # by rank


def _elsewhere(dumps: _Dumps, ranks: Iterable[int], name: str) -> frozenset[int]:
    """Those of the ranks whose GPU is in something earlier than this operation."""
    return frozenset(r for r in ranks if r in dumps and dumps[r].order and dumps[r].order[0] != name)


def graph(hang: Hang) -> Graph:
    """The wait-for graph of these facts."""
    dumps = {d.rank: d for d in hang.dumps}
    waits = grouped(
        (wait.rank, wait)
        for wait in (
            *(
                _collective(group, track, sure, dumps)
                for group in hang.groups
                for sure in [credible(group)]
                for track in group.tracks
            ),
            *(wait for channel in hang.channels for wait in _point_to_point(channel, dumps)),
        )
        if wait
    )
    waited = {rank for every in waits.values() for wait in every for rank in wait.on}
    unended = {r: w for r, w in _unended(hang, dumps).items() if r in waited}
    return Graph(
        {r: sorted(w, key=lambda wait: not wait.first) for r, w in waits.items() if r not in unended}, unended
    )


def _unended(hang: Hang, dumps: _Dumps) -> dict[int, Wait]:
    """Ranks whose first open operation peers have completed, though no member completes it alone: their GPU
    ran it, or it could not have ended anywhere, and they do not see its end. Seen in NCCL dumps of torch
    2.8 after an error of the GPU. Where members called different things nothing follows, nor where most
    of them are in that state."""
    waits = {}
    for group in hang.groups:
        sure, differ = credible(group), _first_difference(group)
        behind = {
            r: op
            for r, t in sure.items()
            if (op := t.opened)
            and needs_all(op.call)
            and op.state != "returned"
            and not is_young(op)
            and op.seq < differ
            and any(other.completed >= op.seq for other in sure.values())
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


def _first_difference(group: Group) -> float:
    return min((d.seq for d in group.differences), default=math.inf)


def credible(group: Group) -> dict[int, Track]:
    """Tracks that can be believed to be up to date: none that lacks what others could only
    complete together with it."""
    reached = max((t.joined for t in group.tracks), default=0)
    return {t.rank: t for t in group.tracks if t.known and t.enqueued >= reached}


def is_young(op: Op) -> bool:
    return op.age_s is not None and op.age_s < YOUNG_S


def _collective(group: Group, track: Track, sure: dict[int, Track], dumps: _Dumps) -> Wait | None:
    op = track.opened
    if op is None or track.rank not in sure or is_young(op):
        return None
    late = {r for r, t in sure.items() if t.enqueued < op.seq and r != track.rank}
    # its dump is as old as the operation: it may have come right after
    unsure = {
        r
        for r in late
        if r in dumps
        and (at := dumps[r].written) is not None
        and op.created_ns
        and at - op.created_ns / 1e9 < YOUNG_S
    }
    if op.state == "returned" and not late - unsure and all(d.seq != op.seq for d in group.differences):
        return None  # it came back, and nothing shows that it had to wait
    name = f"{group.name}:{op.seq}"
    here = [r for r, t in sure.items() if r != track.rank and t.opened and t.opened.seq <= op.seq]
    return Wait(
        track.rank,
        group.name,
        op,
        frozenset(late - unsure) or _elsewhere(dumps, here, name),
        frozenset(unsure | set(group.ranks) - set(sure)),
        first=not _elsewhere(dumps, [track.rank], name),
    )


def _point_to_point(channel: Channel, dumps: _Dumps) -> Iterable[Wait]:
    """Who has more open operations on a channel than the other end waits for that end; equal numbers:
    its GPU is not there yet."""
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
                op,
                frozenset({other}) if mine > theirs >= 0 else _elsewhere(dumps, [other], name),
                frozenset({other} if theirs < 0 else ()),
                True,
                not _elsewhere(dumps, [rank], name),
            )


def stuck(hang: Hang, found: Graph) -> dict[int, Wait]:
    """Ranks with an operation open that every peer with entries of that group has completed,
    or that do not see its end."""
    accused = dict(found.unended)
    on_the_host = {
        d.rank for d in hang.dumps if d.backend == "gloo"
    }  # where what timed out counts as complete
    for group in hang.groups:
        sure, differ = (
            {r: t for r, t in credible(group).items() if t.last is not None},
            _first_difference(group),
        )
        for rank, track in sure.items():
            wait = next(
                (
                    w
                    for w in found.waits.get(rank, ())
                    if w.group == group.name and not w.p2p and w.op == track.opened
                ),
                None,
            )
            others = [t for r, t in sure.items() if r != rank]
            if (
                wait
                and not wait.on
                and others
                and wait.op.seq < differ
                and wait.first
                and rank not in on_the_host
                and all(t.completed >= wait.op.seq >= t.joined for t in others)
            ):
                accused[rank] = wait
    return accused


def not_started(hang: Hang, found: Graph) -> dict[int, Wait]:
    """Where torch times its kernels: ranks whose GPU has not begun an operation that the GPUs of most
    members, or of the only other, are in. Who never records a start was not timed."""
    timed = {d.rank for d in hang.dumps if d.timed}
    places = grouped(
        ((w.group, w.op.seq), w) for w in found.all() if w.first and not w.p2p and not w.on and not w.perhaps
    )
    begun = {place: sum(w.op.state == "started" for w in waits) for place, waits in places.items()}
    return {
        w.rank: w
        for place, waits in places.items()
        for w in waits
        if w.op.state == "scheduled" and w.rank in timed and 2 * begun[place] > len(waits) - (len(waits) == 2)
    }


def strays(hang: Hang, found: Graph) -> dict[int, list[Wait]]:
    """Ranks that wait themselves, and that others wait for in just what their own habit had where they lately
    took a step of their own."""
    left_out = {d.rank: d.left_out for d in hang.dumps if d.left_out}
    purpose = {g.name: g.name if g.desc in ("", "undefined") else g.desc for g in hang.groups}
    return {
        rank: waits
        for rank, every in found.waited_for().items()
        if rank in left_out
        and found.waits.get(rank)
        and (
            waits := [
                w
                for w in every
                if w.first and f"{purpose[w.group]} {w.op.call.partition(' ')[0]}" in left_out[rank]
            ]
        )
    }


def odd_ones(difference: Difference) -> tuple[str, set[int]]:
    """Of what members called at one number: the expected call, and who called another; nobody where
    it is even and nothing was usual."""
    for weight in (lambda call: len(difference.calls[call]), lambda call: difference.before.get(call, 0)):
        usual, second = sorted(difference.calls, key=weight, reverse=True)[:2]
        if weight(usual) > weight(second):
            break
    else:
        return "", set()
    typed = not usual.endswith(
        "?"
    )  # the oldest recorders name no types; where the others have one, a call without is damage
    return usual, {
        r
        for call, ranks in difference.calls.items()
        for r in ranks
        if call != usual and _IS_CALL.fullmatch(call) and not (typed and call.endswith("?"))
    }


def against_habit(hang: Hang, found: Graph) -> list[int]:
    """Of ranks that wait for each other, those that took a step which they, or everybody, never took
    before; only if others did not."""
    on = {rank: {r for w in waits if w.first for r in w.on} for rank, waits in found.waits.items()}
    ranks = {rank for rank, others in on.items() if any(rank in on.get(other, ()) for other in others)}
    odd = {d.rank for d in hang.dumps if d.rank in ranks and d.left_out is not None}
    return sorted(odd) if odd < ranks else []


def stragglers(hang: Hang) -> dict[int, str]:
    """Ranks that were far less in operations than all others, which mostly wait, for them; and how much,
    in words. Else the one for which all others waited each time: torch sees ends up to 100 ms late, and
    on a crowded host later still, but not when a call was made."""
    rows = sorted((d.waiting, d.rank) for d in hang.dumps if d.waiting is not None)
    gaps = [b[0] - a[0] for a, b in zip(rows, rows[1:])]
    cut = max(range(len(gaps)), key=lambda i: gaps[i], default=None)
    if cut is None or len(rows) < len(hang.dumps) or cut + 1 > max(1, len(rows) // 4):
        return _latecomer(hang)
    most, least, pace_ms = rows[cut][0], rows[cut + 1][0], min(d.pace_ms or 0 for d in hang.dumps)
    if (
        most > WAITS_LEAST
        or least < WAITS_MOST
        or least - most < APART
        or (least - most) * pace_ms < COSTS_MS
    ):
        return _latecomer(hang)
    return {
        r: f"in collectives for {share * 100:.0f} % of its last while, every other rank for at least "
        f"{least * 100:.0f} %"
        for share, r in rows[: cut + 1]
    }


def _latecomer(hang: Hang) -> dict[int, str]:
    return {
        rank: f"{says}, who waited for it {share * 100:.0f} % of the last while"
        for rank, (says, share, sure) in late(hang).items()
        if sure
    }


def late(hang: Hang) -> dict[int, tuple[str, float, bool]]:
    """The one rank that all others waited for: in words, for which share of time, and whether its
    clock cannot be the reason."""
    dumps = [d for d in hang.dumps if (d.late or 0) >= APART and (d.late_ms or 0) >= LATE_MS]
    return {
        d.rank: (
            f"the last to come, {d.late_ms:.0f} ms after all others",
            d.late,
            d.late_ms - d.late_error_ms >= LATE_MS,
        )
        for d in dumps
        if len(dumps) == 1
    }


def uneven(hang: Hang, rank: int) -> list[Count]:
    """What the rank said about its number of minibatches, and what another one said,
    if it had fewer than all others."""
    own = [c for c in hang.counts if c.rank == rank]
    others = [c for c in hang.counts if c.rank != rank]
    return [own[0], others[0]] if own and others and own[0].number < min(c.number for c in others) else []


# --- words for groups, calls and places


def places(calls: collections.Counter[str]) -> str:
    """Where ranks wait, with how many of them where there are several places."""
    return ", ".join(call + f" ({counted(n, 'rank')})" * (len(calls) > 1) for call, n in calls.most_common(4))


def called(hang: Hang, wait: Wait) -> str:
    """An operation as a reader knows it: "ALL_REDUCE 7 of group 0 (default_pg)"."""
    name = wait.op.call if wait.p2p else f"{wait.op.call.split(' ')[0].upper()} {wait.op.seq}"
    return f"{name} of {group_name(hang, wait.group)}"


def group_name(hang: Hang, name: str) -> str:
    """With its description, if it has one."""
    desc = next((g.desc for g in hang.groups if g.name == name), "")
    return (f"group {name}" if name else "a group without a name") + (
        f" ({desc})" if desc and desc not in (name, "undefined") else ""
    )


def frame_of(hang: Hang, rank: int) -> str:
    """The place of a rank, by its stack, else by its last operation; "" for neither."""
    stack = next((s for s in hang.stacks if s.rank == rank and s.frames), None)
    return (
        top_of(stack) if stack else next((d.last.frame for d in hang.dumps if d.rank == rank and d.last), "")
    )


def source_of(hang: Hang, wait: Wait) -> str:
    """The file that shows a wait."""
    track = track_of(hang, wait.group, wait.rank)
    return track.source if track else ""


def track_of(hang: Hang, group: str, rank: int) -> Track | None:
    """What is known of a rank in the group of that name; None for nothing."""
    return next((t for g in hang.groups if g.name == group for t in g.tracks if t.rank == rank), None)


# --- stacks that were saved, without a dump

# py-spy 0.4 prints the path below the folder that is no package: "selectors.py", "torch/serialization.py"
_PACKAGES = frozenset(("torch", "numpy", "asyncio", "concurrent", "importlib", "multiprocessing"))
_POINT_TO_POINT = re.compile(r"send|recv")
# it waits for a thread or a data loader of its own, which may be what waits in the collective
_WAITS_FOR_ITS_OWN = re.compile(r"/(?:threading|queue)\.py$|/concurrent/futures/|/torch/utils/data/")
_AGAIN = "py-spy dump --pid PID   # of every rank, twice, ten seconds apart, into two folders: give both"


def frames_of(stack: SavedStack) -> Stack:
    """The same with each frame taken apart, and what is installed under a folder that says so."""
    cut = [
        (function, *place.rpartition(":")[::2])
        for function, _, place in (text.partition(", ") for text in stack.frames)
    ]
    return Stack(
        0,
        "",
        "idle" not in stack.state,
        "gil" in stack.state,
        [
            Frame(
                function,
                f"/site-packages/{file}" if _is_installed(file) else file,
                int(line) if line.isdecimal() else 0,
            )
            for function, file, line in cut
        ],
    )


def _is_installed(file: str) -> bool:
    """Also frames of native code, which `py-spy dump --native` shows with their source files."""
    if pathlib.PurePosixPath(file).suffix not in ("", ".py"):
        return True
    top, _, below = file.partition("/")
    return top in _PACKAGES if below else top.removesuffix(".py") in sys.stdlib_module_names


def top_of(stack: SavedStack) -> str:
    """The innermost frame of the job's own, without its folder."""
    frame = own_frame(frames_of(stack))
    return f"{frame.function}, {frame.file.rpartition('/')[2]}:{frame.line}" if frame else ""


def seen_in(stack: SavedStack) -> Evidence:
    """The top of a stack as evidence."""
    return Evidence(
        f"rank {stack.rank}: "
        f"{stack.state + ' ' if stack.state else ''}{' < '.join(stack.frames[:3])}".strip(),
        stack.source,
    )


def is_elsewhere(stack: Stack) -> bool:
    """In no call of torch.distributed, and it waits neither for its GPU nor for a thread
    or a data loader of its own."""
    return (
        bool(stack.frames)
        and not waits_in(stack)
        and not any(_WAITS_FOR_ITS_OWN.search(f.file) for f in stack.frames)
    )


def pictures(stacks: Sequence[SavedStack]) -> list[Picture]:
    """One picture of the ranks whose stacks were saved, in one round or several; none without any."""
    rounds = grouped((s.rank, frames_of(s)) for s in stacks if s.frames)
    views = {rank: _view(rank, seen[-1]) for rank, seen in rounds.items()}
    still = {
        rank: len(seen) > 1
        for rank, seen in rounds.items()
        if len({(own_frame(s), waits_in(s)) for s in seen}) == 1
    }
    calls = grouped((views[rank].where, views[rank]) for rank in still if _is_in_collective(rounds[rank]))
    waiters = max(calls.values(), key=len, default=[])
    late = [v for rank, v in views.items() if all(map(is_elsewhere, rounds[rank]))]
    if waiters and 0 < len(late) <= max(1, len(waiters) - 1):
        sure = all(still.get(v.rank) for v in late) and any(still[v.rank] for v in waiters)
        picture = never_came(
            Picture("", "", "", [], [], [*waiters, *late]), late, "likely" if sure else "possible", []
        )
        return [
            dataclasses.replace(
                picture,
                sentence=picture.sentence
                + ". One round of stacks does not show whether it moves" * (not sure),
                evidence=[seen_in(s) for v in (*late, *waiters) for s in stacks if s.rank == v.rank],
                decides=f"open {late[0].frame.partition(', ')[2].partition(' ')[0]}" if sure else _AGAIN,
            )
        ]
    shown = collections.Counter(
        f"{v.where or 'no call of torch.distributed'} ({v.frame})" for v in views.values()
    )
    places = "; ".join(f"{counted(n, 'rank')} in {place}" for place, n in shown.most_common(4))
    return [
        Picture(
            "", "unknown", f"the stacks do not show which rank is late: {places}", [], [], [], decides=_AGAIN
        )
    ] * bool(views)


def _view(rank: int, stack: Stack) -> RankView:
    where = waits_in(stack)
    at_work = stack.is_active or any(
        map(HOST_WORK.search, (word for f in stack.frames for word in (f.function, f.file)))
    )
    return RankView(
        rank, "", None, "waits" if where else "busy" if at_work else "asleep", words_of(stack), where
    )


def _is_in_collective(seen: list[Stack]) -> bool:
    """Whether it waits there for all others. Who stays in one wait for its GPU waits for
    a collective that it has issued."""
    where = waits_in(seen[0])
    issued = any(DISTRIBUTED.search(f.file) and f.function == where for f in seen[0].frames)
    return bool(where) and not _POINT_TO_POINT.search(where) and (issued or len(seen) > 1)
