"""A rank that ended before the others, as torchrun's lines show it."""

from nccl_runbook.causes.causes import Advice, causes
from nccl_runbook.core.facts import rank_names
from nccl_runbook.messages.clues import LOST
from nccl_runbook.messages.facts import Logs
from nccl_runbook.messages.judge import Indication
from nccl_runbook.triage.ranks.judge_indication import matches


def rank_left(logs: Logs) -> list[Indication]:
    """A rank of a job on one node ended with exit code 0 while others communicated: it printed no error,
    torchrun neither lists it nor sent it SIGTERM, and whoever torchrun lists lost a peer or got SIGTERM.
    torchrun's traceback shows that no line of its log was left out. Any other likely cause leads."""
    shown = [f"torchrun-{what}" for what in ("failed-rank", "failed-pid", "ends", "traceback")]
    rows, ends, asked, whole = (matches(logs, message) for message in shown)
    errors = {r.rank: r.first_error for r in logs.ranks if r.first_error}
    listed = {int(row[1]): end for (row, _), (end, _) in zip(rows, ends, strict=False)}
    lost = {rank: errors[rank] for rank in listed if rank in errors and LOST.search(errors[rank].text)}
    last = max(listed, default=0)
    left = sorted({*range(last)} - listed.keys())
    unlisted = {process[1] for process, _ in asked} - {end[2] for end in listed.values()}
    is_whole = all(kept.times == len(kept.lines) for kept in map(logs.seen.get, shown) if kept)
    if (
        not (left and lost and is_whole and len(whole) == 1)
        or unlisted
        or any(row[1] != row[2] for row, _ in rows)  # of a second node
        or any(max(r.rank, (r.nranks or 1) - 1) > last for r in logs.ranks)
        or errors.keys() & set(left)
        or not all(rank in lost or end[1] == "-15" for rank, end in listed.items())
    ):
        return []
    advice = Advice(
        f"{rank_names(left).capitalize()} ended with exit code 0 while others still communicated. torchrun "
        f"lists all processes that fail, but not {rank_names(left)}.",
        causes()["rank-dependent-branch"].remedy[:1],
    )
    return [Indication("collective-on-some-ranks-only", "likely", tuple(lost.values())[:3], (), 900, advice)]
