"""Ranks that differ from the others: stuck, not started, astray, against their habit, or late."""

from nccl_runbook.core.facts import grouped
from nccl_runbook.hang.facts import Count, Difference, Hang
from nccl_runbook.hang.judge_graph import (
    APART,
    COSTS_MS,
    IS_CALL,
    LATE_MS,
    WAITS_LEAST,
    WAITS_MOST,
    Graph,
    Wait,
    credible,
    first_difference,
)


def stuck(hang: Hang, graph: Graph) -> dict[int, Wait]:
    """Ranks with an operation open that every known peer has completed, or whose end they do not see."""
    accused = dict(graph.unended)
    # where what timed out counts as complete
    on_the_host = {d.rank for d in hang.dumps if d.backend == "gloo"}
    for group in hang.groups:
        sure, differ = (
            {r: t for r, t in credible(group).items() if t.last is not None},
            first_difference(group),
        )
        for rank, track in sure.items():
            wait = next(
                (
                    w
                    for w in graph.waits.get(rank, ())
                    if w.group == group.name and not w.p2p and w.op == track.opened
                ),
                None,
            )
            if (
                wait
                and not wait.on
                and len(sure) > 1
                and wait.op.seq < differ
                and wait.first
                and rank not in on_the_host
                and all(t.completed >= wait.op.seq >= t.joined for r, t in sure.items() if r != rank)
            ):
                accused[rank] = wait
    return accused


def not_started(hang: Hang, graph: Graph) -> dict[int, Wait]:
    """If torch times kernels: ranks whose GPU has not begun an operation that the GPUs of most members (or
    of the only other) are in. Ranks that never record a start were not timed."""
    timed = {d.rank for d in hang.dumps if d.timed}
    places = grouped(
        ((w.group, w.op.seq), w) for w in graph.all() if w.first and not w.p2p and not w.on and not w.perhaps
    )
    begun = {place: sum(w.op.state == "started" for w in waits) for place, waits in places.items()}
    return {
        w.rank: w
        for place, waits in places.items()
        for w in waits
        if w.op.state == "scheduled" and w.rank in timed and 2 * begun[place] > len(waits) - (len(waits) == 2)
    }


def strays(hang: Hang, graph: Graph) -> dict[int, list[Wait]]:
    """Ranks that wait themselves while others wait for them in the operation that their habit had, at a step
    where they deviated."""
    left_out = {d.rank: d.left_out for d in hang.dumps if d.left_out}
    purpose = {g.name: g.name if g.desc in ("", "undefined") else g.desc for g in hang.groups}
    return {
        rank: waits
        for rank, every in graph.waited_for().items()
        if rank in left_out
        and graph.waits.get(rank)
        and (
            waits := [
                w
                for w in every
                if w.first and f"{purpose[w.group]} {w.op.call.partition(' ')[0]}" in left_out[rank]
            ]
        )
    }


def odd_ones(difference: Difference) -> tuple[str, set[int]]:
    """(expected call, ranks that called another one) at one number; no ranks if the numbers are even and
    neither call was usual."""
    for weight in (lambda call: len(difference.calls[call]), lambda call: difference.before.get(call, 0)):
        usual, second = sorted(difference.calls, key=weight, reverse=True)[:2]
        if weight(usual) > weight(second):
            break
    else:
        return "", set()
    # the oldest recorders name no types; where the others have one, a call without is damage
    typed = not usual.endswith("?")
    return usual, {
        r
        for call, ranks in difference.calls.items()
        for r in ranks
        if call != usual and IS_CALL.fullmatch(call) and not (typed and call.endswith("?"))
    }


def against_habit(hang: Hang, graph: Graph) -> list[int]:
    """Among ranks that wait for each other, those that took a step which they (or any rank) never took
    before; empty if all did."""
    on = {rank: {r for w in waits if w.first for r in w.on} for rank, waits in graph.waits.items()}
    ranks = {rank for rank, others in on.items() if any(rank in on.get(other, ()) for other in others)}
    odd = {d.rank for d in hang.dumps if d.rank in ranks and d.left_out is not None}
    return sorted(odd) if odd < ranks else []


def stragglers(hang: Hang) -> dict[int, str]:
    """Rank -> in words how much less it was in operations than all others, which mostly wait for it; else
    the rank that all others waited for each time: torch sees ends up to 100 ms late, but calls exactly."""
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
        r: f"in collectives for {share * 100:.0f} % of the recorded time, while every other rank was "
        f"in collectives for at least {least * 100:.0f} %"
        for share, r in rows[: cut + 1]
    }


def _latecomer(hang: Hang) -> dict[int, str]:
    return {
        rank: f"{says}, which waited for this rank during {share * 100:.0f} % of the recorded time"
        for rank, (says, share, sure) in late(hang).items()
        if sure
    }


def late(hang: Hang) -> dict[int, tuple[str, float, bool]]:
    """The rank that all others waited for: (words, share of time, whether its clock cannot explain it)."""
    dumps = [d for d in hang.dumps if (d.late or 0) >= APART and (d.late_ms or 0) >= LATE_MS]
    return {
        d.rank: (
            f"the last rank to arrive, {d.late_ms:.0f} ms after all other ranks",
            d.late,
            d.late_ms - d.late_error_ms >= LATE_MS,
        )
        for d in dumps
        if len(dumps) == 1
    }


def uneven(hang: Hang, rank: int) -> list[Count]:
    """What a rank reported of its number of minibatches, and another rank's number, if it had fewer than all
    others; else empty."""
    own = [c for c in hang.counts if c.rank == rank]
    others = [c for c in hang.counts if c.rank != rank]
    return [own[0], others[0]] if own and others and own[0].number < min(c.number for c in others) else []
