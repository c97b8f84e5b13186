"""A rank that left before the others, as torchrun's list of failed processes shows it."""

from nccl_runbook.causes.causes import Advice
from nccl_runbook.core.facts import rank_names
from nccl_runbook.messages.clues import LOST
from nccl_runbook.messages.facts import Logs
from nccl_runbook.messages.judge import Indication
from nccl_runbook.triage.ranks.judge_indication import matches


def rank_left(logs: Logs) -> list[Indication]:
    """A rank left while others still communicated. All processes that torchrun lists as failed lost a peer,
    or torchrun ended them; a process between them that it does not list ended with exit code 0."""
    rows = matches(logs, "torchrun-failed-rank")
    ended_by_it = {line.line - 1 for _, line in matches(logs, "torchrun-ended-rank")}
    listed = {int(match[1]) for match, _ in rows}
    victims = {int(match[1]) for match, line in rows if line.line not in ended_by_it}
    lost = {r.rank: r.first_error for r in logs.ranks if r.first_error and LOST.search(r.first_error.text)}
    firsts = {int(match[1]) - int(match[2]) for match, _ in rows}  # of one node: one
    left = sorted({*range(min(firsts, default=0), max(listed, default=0))} - listed)
    if len(firsts) != 1 or not left or not victims or victims - lost.keys():
        return []
    names = rank_names(left)
    advice = Advice(
        f"{names.capitalize()} ended with exit code 0 while others still communicated. torchrun lists every "
        f"process that fails, and it does not list {names}.",
        (
            (
                "you",
                "Let all ranks end at the same step. To do so, reduce the stop condition over all ranks:",
                ("stop = torch.tensor(int(condition)); dist.all_reduce(stop, op=dist.ReduceOp.MAX)",),
            ),
        ),
    )
    lines = tuple(lost[rank] for rank in sorted(victims))[:3]
    return [Indication("collective-on-some-ranks-only", "likely", lines, (), 27, advice)]
