"""The ranks that the records name: one function for each way in which a rank is proven not to have come."""

import re

from nccl_runbook.core.facts import counted, grouped, rank_names
from nccl_runbook.core.findings import Evidence
from nccl_runbook.hang.facts import Group, Hang, Op
from nccl_runbook.hang.judge_ended import Accused, ended_ranks
from nccl_runbook.hang.judge_graph import Graph, Wait, called, group_name, source_of, track_of
from nccl_runbook.hang.judge_odd import against_habit, not_started, odd_ones, stragglers, strays, stuck
from nccl_runbook.hang.judge_stacks import frame_of, frames_of, is_elsewhere, seen_in, top_of
from nccl_runbook.messages.clues import ECHO, LOST
from nccl_runbook.messages.judge_silent import unheard

_WAITS_INSIDE = re.compile(
    r"/torch/(?:distributed|cuda|autograd)|nccl|gloo|synchronize|/multiprocessing/|wait\b"
)
_SENDS = re.compile(r"(?:batch_)?i?(?:send|recv)(?:_irecv)?, .*/torch/distributed/")
RAS_AGAIN = "ncclras -v   # run it twice, ten seconds apart, and give both outputs to nccl-runbook hang"


def accuse(hang: Hang, graph: Graph) -> list[Accused]:
    """Every rank with proof against it, once, by rank."""
    first = [
        *ended_ranks(hang, graph),
        *_different(hang),
        # others are known to wait for them, and they wait for no rank
        *(
            _missing(hang, rank, waits)
            for rank, waits in sorted({**_elsewhere(hang, graph), **graph.waited_for()}.items())
            if not graph.waits.get(rank) and rank not in graph.unended
        ),
        *(
            _by_wait(
                wait,
                "gpu-stuck",
                f"issued {called(hang, wait)}{_line(wait.op)}, but its GPU never finished this "
                "collective, although the GPUs of most other ranks started or finished the collective",
                f"rank {rank}",
            )
            for rank, wait in sorted({**not_started(hang, graph), **stuck(hang, graph)}.items())
        ),
        *(_strayed(hang, graph, rank, waits) for rank, waits in sorted(strays(hang, graph).items())),
    ]
    if not (known := {a.rank: a for a in reversed(first)}):
        circles = [
            _by_wait(
                wait,
                "unmatched" if wait.p2p else "order",
                f"waits in {called(hang, wait)}{_line(wait.op)}, which no other rank has reached; the "
                "other ranks wait for this rank elsewhere",
                source_of(hang, wait),
            )
            for wait in (graph.waits[rank][0] for rank in against_habit(hang, graph))
        ]
        known = {a.rank: a for a in [*circles, *(silent(hang, graph) if hang.dumps else [])]}
    return [known[rank] for rank in sorted(known)]


def _elsewhere(hang: Hang, graph: Graph) -> dict[int, list[Wait]]:
    """Ranks that left nothing but a stack, which is in no collective, and the waits that may be for them."""
    is_away = {s.rank: is_elsewhere(frames_of(s)) for s in hang.stacks}
    return grouped(
        (rank, wait) for wait in graph.all() if not wait.p2p for rank in wait.perhaps if is_away.get(rank)
    )


def _different(hang: Hang) -> list[Accused]:
    """Ranks that called another operation than the other members at the first number that differs."""
    odd = [(group, *odd_ones(group.differences[0])) for group in hang.groups if group.differences]
    return [_by_call(hang, group, common, rank) for group, common, ranks in odd for rank in sorted(ranks)]


def _by_call(hang: Hang, group: Group, usual: str, rank: int) -> Accused:
    difference, *later = group.differences[:3]
    call = next(c for c, who in difference.calls.items() if rank in who)
    crossed = any(
        d.seq == difference.seq + 1 and rank in d.calls.get(usual, ()) and set(d.calls) == {usual, call}
        for d in later
    )
    # who skipped one of two calls that alternate is crossed as well, until the third differs, too
    third = difference.seq + 2
    swapped = (
        crossed and all(t.enqueued >= third for t in group.tracks) and third not in [d.seq for d in later]
    )
    track = next(t for t in group.tracks if t.rank == rank)
    op = next((o for o in (track.opened, track.last) if o and o.seq == difference.seq), None)
    left_out = not swapped and difference.after.get(usual) == call
    others = f"{rank_names(sorted(difference.calls[usual]))} called {usual}"
    says = (
        f"called {call} as number {difference.seq} of {group_name(hang, group.name)}{_line(op)}, and "
        + (f"skipped {usual}" if left_out else others)
        + (
            f"; rank {rank} skipped a call, or made two calls in the wrong order"
            if crossed and not swapped and not left_out
            else ""
        )
    )
    return Accused(
        rank,
        "order" if swapped else "skipped" if left_out else "mismatch",
        says=says,
        frame=op.frame if op else frame_of(hang, rank),
        evidence=(Evidence(f"rank {rank} {says}" + f"; {others}" * left_out, track.source),),
        op=op,
        group=group.name,
        in_call=bool(op and op.frame),
    )


def _missing(hang: Hang, rank: int, waits: list[Wait]) -> Accused:
    """A rank that never came to what others wait in."""
    stack = next((s for s in hang.stacks if s.rank == rank and s.frames), None)
    # Gloo records no send and no recv (torch 2.13)
    alone = stack is not None and any(map(_SENDS.match, stack.frames[:6]))
    wait, *_ = waits = sorted(waits, key=lambda w: w.p2p)
    if alone or wait.p2p:
        kind = "unmatched"
    elif stack is None:
        kind = "host-busy" if _stopped_everywhere(hang, rank, waits) else "skipped"
    else:
        kind = "skipped" if any(map(_WAITS_INSIDE.search, stack.frames[:3])) else "host-busy"
    last = next((d.last for d in hang.dumps if d.rank == rank), None)
    where = (
        f"it is in {top_of(stack)}"
        if stack
        else f"its last call was {last.call} {last.seq}, {last.frame}"
        if last and last.frame
        else ""
    )
    says = (
        (
            "is in a send or recv for which no other rank makes the matching call"
            if alone
            else f"never reached {called(hang, wait)}"
        )
        + (f"; {where}" if where else "")
        + (
            "; this rank completed all collectives that it issued, and then issued no more"
            if kind == "host-busy" and stack is None
            else ""
        )
    )
    evidence = _waiting(hang, waits) + ([seen_in(stack)] if stack else [])
    # numbers of other groups, and of p2p, count on their own
    there = [w.op.seq for w in waits if w.group == wait.group and not w.p2p]
    if there and (track := track_of(hang, wait.group, rank)):
        evidence.insert(
            0,
            Evidence(
                f"rank {rank} issued {counted(track.enqueued, 'call')} in this group; "
                f"{counted(len(there), 'waiting rank')} issued at least {min(there)} calls",
                track.source,
            ),
        )
    return Accused(
        rank,
        kind,
        says=says,
        frame=frame_of(hang, rank),
        evidence=tuple(evidence),
        op=wait.op,
        group=wait.group,
    )


def _stopped_everywhere(hang: Hang, rank: int, waits: list[Wait]) -> bool:
    """Whether ranks of several groups wait for this rank, which completed all that it issued. A rank that
    skipped one call goes on to the next."""
    last = {g.name: t for g in hang.groups for t in g.tracks if t.rank == rank}
    return len({w.group for w in waits}) > 1 and all(
        t.known and t.completed >= t.enqueued for t in last.values()
    )


def _strayed(hang: Hang, graph: Graph, rank: int, waits: list[Wait]) -> Accused:
    """A rank that deviated from all its earlier steps, past the operation in which others now wait; it may
    itself be waiting."""
    wait, own = waits[0], graph.waits[rank][0]
    issued = (track := track_of(hang, wait.group, rank)) and track.enqueued >= wait.op.seq
    says = (
        f"is in {called(hang, own)}{_line(own.op)} "
        f"and {'was late for' if issued else 'has not called'} {called(hang, wait)}"
    )
    return Accused(
        rank,
        "order" if issued else "skipped",
        says=says,
        frame=own.op.frame,
        evidence=(
            Evidence(
                f"rank {rank} called {called(hang, own)}{_line(own.op)}; in earlier steps, "
                f"the rank called {called(hang, wait)} at this point",
                source_of(hang, own),
            ),
            *_waiting(hang, waits),
        ),
        op=own.op,
        group=own.group,
        in_call=bool(own.op.frame),
    )


def _waiting(hang: Hang, waits: list[Wait]) -> list[Evidence]:
    return [
        Evidence(f"rank {w.rank} waits in {called(hang, w)}{_line(w.op)}", source_of(hang, w))
        for w in waits[:3]
    ]


def _line(op: Op | None) -> str:
    """The line of code of a call, behind its name; empty if unknown."""
    return f" at {op.frame}" if op and op.frame else ""


def _by_wait(wait: Wait, kind: str, says: str, source: str) -> Accused:
    return Accused(
        wait.rank,
        kind,
        says=says,
        frame=wait.op.frame,
        evidence=(Evidence(f"rank {wait.rank} {says}", source),),
        op=wait.op,
        group=wait.group,
        in_call=bool(wait.op.frame),
    )


def silent(hang: Hang, graph: Graph) -> list[Accused]:
    """Ranks without any evidence whose logs all fell silent when the others reported trouble: killed,
    stopped and busy ranks look alike. If all others lost a connection, the first one lost it to a rank that
    ended."""
    mute, dumped = unheard(hang.logs), {f.rank for f in hang.files if f.what == "dump"}
    candidates = ({r.rank for r in mute} - dumped) | (
        {r for w in graph.all() for r in w.perhaps} - {r for w in graph.all() for r in (w.rank, *w.on)}
    )
    quiet = {
        r.rank: r.last
        for r in [*hang.logs.ranks, *mute]
        if not (r.timeouts or r.warned or r.first_error or r.ended)
    }
    spoke = [
        r
        for r in hang.logs.ranks
        if r.timeouts or r.warned or (r.first_error and ECHO.search(r.first_error.text))
    ]
    if (
        not candidates <= set(quiet) - dumped
        or not spoke
        or len(candidates) > max(1, len(hang.logs.ranks) // 2)
    ):
        return []
    lost = all(
        r.first_error and LOST.search(r.first_error.text) and not (r.timeouts or r.warned) for r in spoke
    )
    kind, why = (
        ("dead", "the rank ended: the other ranks report that they lost their connection to this rank")
        if lost
        else ("unknown", "the files do not show whether the rank was killed, stopped or busy")
    )
    return [
        Accused(
            rank,
            kind,
            f"left no dump and printed nothing more: {why}",
            frame_of(hang, rank),
            (
                Evidence(f"its last line: {last.text[:160]}", f"{last.file} line {last.line}")
                if last
                else Evidence("the log has no line of this rank", f"rank {rank}"),
            ),
            doubtful=True,
        )
        for rank, last in sorted(quiet.items())
        if rank in candidates
    ]


def slow(hang: Hang) -> list[Accused]:
    """Ranks that wait far less than the others, which mostly wait for them."""
    return [
        Accused(
            rank,
            "slow",
            f"is slow: {words}",
            frame_of(hang, rank),
            (Evidence(f"rank {rank} was {words}", "dumps"),),
        )
        for rank, words in sorted(stragglers(hang).items())
    ]


# --- what NCCL's RAS printed: which ranks it lost, and which launched another number of collectives than most

# A rank's number in a communicator is its number in the job only if the communicator spans the job.
# One answer shows no standstill, so whatever rests on a single answer is possible at most. An answer without
# a majority does not show which side is wrong.
