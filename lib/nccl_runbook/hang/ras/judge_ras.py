"""Ranks that NCCL's RAS lost, and ranks that launched another number of collectives."""

from nccl_runbook.core.facts import grouped
from nccl_runbook.core.findings import Evidence
from nccl_runbook.hang.judge_ended import Accused
from nccl_runbook.hang.live.facts import RasAnswer, RasCommunicator, RasRank
from nccl_runbook.hang.live.ranks.judge_calls import apart


def by_ras(answers: list[RasAnswer]) -> list[Accused]:
    """Ranks that RAS lost; if it lost none, those that differ from most in every communicator with
    differences."""
    numbers = {
        _who(c, r): r.rank
        for a in answers
        for c in a.communicators
        if c.size == a.gpus
        for r in c.ranks
        if r.rank >= 0
    }
    return [
        Accused(
            numbers[who],
            kind,
            says,
            "",
            (Evidence(f"rank {numbers[who]} {says}", f"NCCL RAS, {answers[-1].source}"),),
            doubtful=doubtful,
        )
        for who, (kind, says, doubtful) in (_lost(answers) or _suspects(answers)).items()
        if who in numbers
    ]


def ras_unclear(answers: list[RasAnswer]) -> str:
    """Why no rank is named."""
    suspects = _lost(answers) or _suspects(answers)
    calls = sorted({row.call for c in answers[-1].communicators for row in apart(c.ranks)})
    if suspects:
        return "; ".join(
            [
                *(f"{' '.join(map(str, who))}: {says}" for who, (_, says, _) in suspects.items()),
                "the ranks of these processes in the job are unknown.",
            ]
        )
    if calls and not _moved(answers):
        return (
            f"ranks launched different numbers of {', '.join(calls)}, and NCCL's RAS cannot show which "
            "ranks are wrong."
        )
    return (
        "NCCL's RAS lists no lost rank, and no stalled rank whose number of launched collectives differs "
        "from the other ranks."
    )


def _who(communicator: RasCommunicator, rank: RasRank) -> tuple[object, ...]:
    """One key for a GPU of a process in all communicators, if RAS names the process."""
    return (
        ("process", rank.pid, "on", rank.host, "GPU", rank.nvml_index)
        if rank.pid
        else ("rank", rank.rank, "of communicator", communicator.id)
    )


def _lost(answers: list[RasAnswer]) -> dict[tuple[object, ...], tuple[str, str, bool]]:
    """Ranks that are missing where at least as many answer: of two halves of a network each
    takes the other for lost."""
    return {
        _who(c, r): (
            "dead" if r.missing == "considered dead" else "unknown",
            f"is missing in communicator {c.id}: {r.missing}",
            True,
        )
        for answer in answers[-1:]
        for c in answer.communicators
        if 2 * sum(bool(r.missing) for r in c.ranks) <= c.size
        for r in c.ranks
        if r.missing
    }


def _suspects(answers: list[RasAnswer]) -> dict[tuple[object, ...], tuple[str, str, bool]]:
    """Who waits in one communicator may be late in another one, so a suspect is apart in all of them."""
    answers_of = grouped((c.id, c) for answer in answers for c in answer.communicators)
    suspects = []
    for c in answers[-1].communicators if answers and not _moved(answers) else []:
        rows = grouped(
            (_who(c, rank), (row, rank))
            for row in apart(c.ranks)
            if row.usual is not None
            for rank in row.ranks
            if rank.rank >= 0
        )
        if apart(c.ranks):
            suspects.append(
                {
                    who: (
                        "mismatch" if len({row.is_behind(rank) for row, rank in pairs}) > 1 else "skipped",
                        ", ".join(row.words(rank) for row, rank in pairs),
                        len(answers_of[c.id]) < 2,
                    )
                    for who, pairs in rows.items()
                }
            )
    return (
        {
            who: suspicion
            for who, suspicion in suspects[0].items()
            if all(who in others for others in suspects)
        }
        if suspects
        else {}
    )


def _moved(answers: list[RasAnswer]) -> bool:
    """Whether any count changed between two answers."""
    counts = grouped(
        (c.id, sorted((r.rank, sorted(r.launched.items())) for r in c.ranks if not r.missing))
        for answer in answers
        for c in answer.communicators
    )
    return any(later != rows[0] for rows in counts.values() for later in rows)
