"""Ranks that call different operations as one number."""

from nccl_runbook.causes.causes import Advice
from nccl_runbook.core.facts import grouped, rank_names
from nccl_runbook.messages.facts import NOT_COUNTED, Timeout
from nccl_runbook.messages.judge import Indication


def operations_differ(works: list[tuple[int, Timeout]]) -> list[Indication]:
    """One number in one group is another operation on some ranks: these calls cannot match; empty if the
    numbers of the calls say nothing. ``works``: rank and timeout of each rank that waits."""
    # each kind of call has a number of its own (ProcessGroupNCCL.cpp, torch 2.11: seqP2P_, seqCollective_)
    if any(t.op.startswith(NOT_COUNTED) for _, t in works) or len({rank for rank, _ in works}) < len(works):
        return []
    ranks = grouped((t.op, rank) for rank, t in works)
    lines = tuple({t.op: t.at for _, t in works}.values())[:4]
    number, group = works[0][1].seq, works[0][1].group
    called = " and ".join(f"{rank_names(those)} called {op}" for op, those in ranks.items())
    says = (
        f"As call number {number}, {called}, so the ranks wait for each other. Ranks match collectives "
        "by order, so one rank made an extra call or took a different branch, at this call or earlier."
    )
    find = (
        "Find where the ranks diverge. Let torch compare each collective, and look for a condition or "
        f"an early return before call {number} that applies only to some of these ranks:"
    )
    against = (
        "two groups may have the same description, and each group counts its own calls"
        if group
        else "the log lines do not name the group, and each group counts its own calls",
    )
    to_do = ("you", find, ("export TORCH_DISTRIBUTED_DEBUG=DETAIL",))
    return [
        Indication("collective-mismatch", "likely", lines, against, 24, Advice(says, (to_do,))),
        Indication("rank-dependent-branch", "possible", lines, (), 43),
    ]
