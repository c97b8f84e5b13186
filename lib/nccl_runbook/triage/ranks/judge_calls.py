"""Collective calls that differ between ranks: in number, operation or tensors."""

import re

from nccl_runbook.causes.causes import Advice
from nccl_runbook.core.facts import grouped
from nccl_runbook.messages.facts import Logs, Timeout
from nccl_runbook.messages.judge import Indication
from nccl_runbook.triage.ranks.judge_indication import matches, waiting_ranks
from nccl_runbook.triage.ranks.judge_operations import operations_differ

_COUNT = re.compile(
    r"(?<!\d)(\d+)(?:/\d+)?\s?(?:batch|it\b|steps?\b)(?!\W{0,3}\d)|\b(?:step|iter(?:ation)?|batch)\W{0,3}(\d+)",
    re.I,
)

_LEFT = re.compile(r"(?i)\b(?:done|finished|completed?)\b")  # a rank at the end of its loop


def counts_differ(logs: Logs) -> list[Indication]:
    """Ranks stopped at different batch numbers while one waited."""
    counts = {
        r.rank: (int(next(filter(None, m.groups()))), r.progress)
        for r, m in [(r, _COUNT.search(r.progress.text)) for r in logs.ranks if r.progress]
        if m
    }
    if len(counts) < 2 or not waiting_ranks(logs):
        return []
    low, high = min(counts.values(), key=lambda c: c[0]), max(counts.values(), key=lambda c: c[0])
    if high[0] - low[0] < 2 or [c for c, _ in counts.values()].count(high[0]) < 2:
        return []
    return [
        Indication(
            "uneven-minibatches", "likely", (high[1], low[1], waiting_ranks(logs)[0].timeouts[0].at), (), 25
        )
    ]


def calls_differ(logs: Logs) -> list[Indication]:
    """Waiting ranks wait in different calls: other numbers, or one number with another operation or size."""
    works = [(r.rank, t) for r in waiting_ranks(logs) for t in r.timeouts[:1] if t.seq is not None]
    numbers, calls = {t.seq for _, t in works}, {(t.op, t.numel_in) for _, t in works}
    causes: dict[str, tuple[str, int]] = {}  # cause -> status and place
    if len({_group(rank, t) for rank, t in works}) > 1 and len(calls) > 1:
        causes = {"communicator-order": ("possible", 39), "collective-on-some-ranks-only": ("possible", 40)}
    elif len(numbers) > 1 and max(numbers) - min(numbers) < 100:
        causes = {
            "collective-on-some-ranks-only": ("possible", 40),
            "rank-dependent-branch": ("possible", 41),
            "uneven-minibatches": ("possible", 42),
        }
    elif len(numbers) == 1 and len(calls) > 1 and not any(op == "ELIDED" for op, _ in calls):
        mixed = len({op for op, _ in calls}) > 1
        if mixed and (indications := operations_differ(works)):
            return indications
        # another call, or another module's weights: ranks may have taken different branches
        sure = "possible" if mixed or any(op == "_ALLGATHER_BASE" or n == 1 for op, n in calls) else "likely"
        causes = {"collective-mismatch": (sure, 26), "rank-dependent-branch": ("possible", 43)}
        if any(r.progress and _LEFT.search(r.progress.text) for r in waiting_ranks(logs)):
            causes["uneven-minibatches"] = ("possible", 25)
    lines = tuple(
        same[0] for same in grouped(((t.seq, t.op, t.numel_in), t.at) for _, t in works).values()
    )  # one of each call
    return [Indication(cause, status, lines[:4], (), place) for cause, (status, place) in causes.items()]


def _group(rank: int, work: Timeout) -> str:
    """The group in which a rank waits: its name, or its rank there if that is another one."""
    inside = re.search(r"\[Rank (\d+)\]", work.at.text)
    return work.group or (
        f"a communicator in which this rank is rank {inside[1]}"
        if inside and int(inside[1]) != rank
        else "the world"
    )


def tensors_differ(logs: Logs) -> list[Indication]:
    """Sender and receiver print different types or shapes of one tensor."""
    by = grouped((match[1], (match[2], match[3], line)) for match, line in matches(logs, "tensor-described"))
    name, one, other = next(
        ((n, t[0], u) for n, t in by.items() for u in t if u[:2] != t[0][:2]), ("", None, None)
    )
    if not name:
        return []
    says = (
        f"{name} is {one[0]} of shape ({one[1]}) on one side and {other[0]} of shape ({other[1]}) on "
        "the other side."
    )
    fix = (
        "you",
        f"Use the same data type and shape for {name} on both sides. Convert the tensor before the transfer.",
        (f"tensor = tensor.to(torch.{other[0]})",),
    )
    return [
        Indication(
            "collective-mismatch",
            "likely" if waiting_ranks(logs) else "possible",
            (one[2], other[2]),
            (),
            17,
            Advice(says, (fix,)),
        )
    ]


def all_wait_alike(logs: Logs) -> list[Indication]:
    """A timeout without evidence of who was missing."""
    if not (waiting := waiting_ranks(logs)):
        return (
            [Indication("collective-on-some-ranks-only", "possible", (logs.timeout,), (), 920)]
            if logs.timeout
            else []
        )
    lines = tuple(r.timeouts[0].at for r in waiting[:2])
    causes = ("collective-on-some-ranks-only", "rank-busy-on-host", "rank-dependent-branch")
    return [
        Indication(cause, "possible", lines, ("the missing rank is not known",), 900 + i)
        for i, cause in enumerate(causes)
    ]


def numbered_calls_differ(logs: Logs) -> list[Indication]:
    """NCCL prints another operation, size or type under one number within groups of one size."""
    against = ("these calls may belong to two groups of the same size, and then they are no mismatch",)
    find = (
        "you",
        "Compare the two calls, and find out why the ranks differ, such as a different branch, different "
        "input, or an extra call.",
        (),
    )
    return (
        [Indication("collective-mismatch", "possible", tuple(logs.apart), against, 34, Advice("", (find,)))]
        if logs.apart
        else []
    )
