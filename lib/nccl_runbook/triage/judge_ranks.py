"""What the table of ranks says: who waited, who was missing, who differed; and the experiments that
a reporter describes: a setting or a version, and whether the job worked with it."""

from nccl_runbook.causes.causes import Advice, causes
from nccl_runbook.core.facts import grouped, rank_names
from nccl_runbook.core.findings import MOST_QUOTED, cut
from nccl_runbook.messages.clues import AT_WORK, says
from nccl_runbook.messages.facts import Logs
from nccl_runbook.messages.judge import Indication, raised_first, surely_after
from nccl_runbook.messages.judge_silent import unheard
from nccl_runbook.triage.ranks.judge_calls import (
    all_wait_alike,
    calls_differ,
    counts_differ,
    numbered_calls_differ,
    tensors_differ,
)
from nccl_runbook.triage.ranks.judge_gpus import (
    communicators_pile_up,
    first_gpu_is_held,
    nodes_differ,
    ranks_chose_one_gpu,
    ranks_on_one_gpu,
    versions_differ,
)
from nccl_runbook.triage.ranks.judge_indication import matches, traceback_advice, waiting_ranks
from nccl_runbook.triage.ranks.judge_left import rank_left


def judge_ranks(logs: Logs) -> list[Indication]:
    """What the ranks' lines show in combination."""
    who_was_late = [
        p
        for rule in (
            rank_raised_first,
            rank_never_came,
            rank_left,
            counts_differ,
            calls_differ,
            rank_is_silent,
        )
        for p in rule(logs)
    ]
    return [
        *(who_was_late or all_wait_alike(logs)),
        *(
            p
            for rule in (
                guards_failed,
                ranks_on_one_gpu,
                ranks_chose_one_gpu,
                first_gpu_is_held,
                tensors_differ,
                numbered_calls_differ,
                versions_differ,
                nodes_differ,
                runs_apart,
                communicators_pile_up,
                somebody_raised,
            )
            for p in rule(logs)
        ),
    ]


def rank_raised_first(logs: Logs) -> list[Indication]:
    """A rank raised its own exception while others waited for it."""
    first, echoes = raised_first(logs)
    close = (
        f"ranks {', '.join(str(line.rank) for line in first)} failed too close together to show "
        "which was first"
    )
    return (
        [
            Indication(
                "peer-crashed",
                "likely",
                (*first[:3], *echoes),
                (close,) if first[1:] else (),
                30,
                traceback_advice(first[0], logs),
            )
        ]
        if first
        else []
    )


def rank_never_came(logs: Logs) -> list[Indication]:
    """A living rank has enqueued less than another one waits for."""
    statuses = {
        "collective-on-some-ranks-only": "likely",
        "rank-dependent-branch": "possible",
        "uneven-minibatches": "possible",
    }
    # by group: how far each living rank came, and the rank
    reached = grouped(
        (group, (max(seq, *(t.seq or 0 for t in r.timeouts), 0), r.rank))
        for r in logs.ranks
        if r.warned and not r.first_error
        for group, seq in r.enqueued.items()
        if seq >= 0
    )
    last = {group: sorted(came)[:2] for group, came in reached.items()}  # one of the two is another rank
    for waiter, work in ((r, t) for r in logs.ranks for t in r.timeouts):
        group = work.group if work.group in waiter.enqueued else next(iter(waiter.enqueued), "")
        seq = work.seq or 0
        if any(came < seq and rank != waiter.rank for came, rank in last.get(group, ())):
            behind = {rank for came, rank in reached[group] if came < seq}
            late = [r for r in logs.ranks if r.rank in behind and r.rank != waiter.rank]
            lines = (work.at, *filter(None, (r.progress or r.last for r in late[:2])))
            return [
                Indication(cause, status, lines, (), 20 + i)
                for i, (cause, status) in enumerate(statuses.items())
            ]
    return []


def rank_is_silent(logs: Logs) -> list[Indication]:
    """Another rank waited, and this one printed nothing more: it died silently, or does not move."""
    waiting = waiting_ranks(logs)
    known = max((r.nranks or 0 for r in logs.ranks), default=0)
    silent = [
        r
        for r in [*logs.ranks, *unheard(logs)]
        if waiting
        and not (r.timeouts or r.warned or r.first_error or r.ended)
        and not (r.last and "Watchdog caught" in r.last.text)  # behind what grep put before the line
        and r.rank < (known or 1 << 20)
    ]
    if not silent or len(silent) > max(1, len(logs.ranks) // 2):
        return []
    last = [r.last for r in silent if r.last]
    against = (
        "a killed process and a stopped process both print nothing, and only the process state shows "
        "which of the two it is",
    )
    busy = [line for line in last if AT_WORK.search(line.text)]
    placed = enumerate(
        (("rank-busy-on-host", "collective-on-some-ranks-only") if busy or not last else ())
        + ("peer-crashed", "peer-stopped")
        + (("rank-busy-on-host",) if last and not busy else ())
    )
    doing = [
        Advice(
            f"{rank_names([r.rank for r in waiting])} waited in "
            f"{' and '.join(dict.fromkeys(f'{w.timeouts[0].op} {w.timeouts[0].seq}' for w in waiting))}, and "
            + (
                f"rank {r.last.rank} printed nothing after: {r.last.text[:120]}"
                if r.last
                else f"{rank_names([one.rank for one in silent])} printed nothing at all in this log"
            )
        )
        for r in silent
        if not last or r.last in (busy or last)
    ][:1]
    lines = tuple(dict.fromkeys((*(busy or last)[:1], waiting[0].timeouts[0].at, *last[:2])))
    # at work after others gave up: it lived then
    lives = any(surely_after(line, r.timeouts[0].at, logs) for line in busy for r in waiting)
    return [
        Indication(cause, "likely" if lives and not i else "possible", lines, against, 28 + i, advice)
        for (i, cause), advice in zip(placed, [*doing, *[None] * 4])
    ]


def guards_failed(logs: Logs) -> list[Indication]:
    """A guard in the job itself measured the fault before the collective."""
    return [
        Indication(
            match[3],
            "established",
            (line,),
            advice=Advice(f"{match[2]} (guard {match[1]})"),
            message="guard-failed",
        )
        for match, line in matches(logs, "guard-failed")
        if match[3] in causes()
    ]


def runs_apart(logs: Logs) -> list[Indication]:
    """nccl-tests built without MPI: every process that mpirun starts is a job of its own, with its own rank
    0."""
    first = {
        line.file: line.line for _, line in reversed(matches(logs, "nccl-tests-end"))
    }  # behind a result stands another run
    begun = [
        (match, line)
        for match, line in matches(logs, "nccl-tests-rank-0")
        if line.line < first.get(line.file, line.line + 1)
    ]
    by = {match[1].split(".")[0]: line for match, line in begun if line.file == begun[0][1].file}
    return (
        [Indication("rendezvous-misconfigured", "likely", tuple(by.values()), (), 38)] if len(by) > 1 else []
    )


def somebody_raised(logs: Logs) -> list[Indication]:
    """An exception of the program itself, with no other rank heard; it matters more if no rank waited."""
    if not logs.raised:
        return []
    name = logs.raised.text.partition(":")[0].strip()
    how = "raised" if name != "Killed" and name.replace(".", "").isidentifier() else "ended with"
    decides = traceback_advice(logs.raised, logs).decides
    ended = decides or logs.timeout or (logs.seen.get("job-ended") and not logs.seen["job-ended"].resumed)
    advice = Advice(f"The program {how} {cut(logs.raised.text, MOST_QUOTED)}", decides=decides)
    return [
        Indication(
            "peer-crashed",
            "possible",
            (logs.raised,),
            (),
            450 if logs.timeout or says(logs.context, "<hang>|<timeout>") else 300,
            advice if ended else Advice(),
        ),
    ]
