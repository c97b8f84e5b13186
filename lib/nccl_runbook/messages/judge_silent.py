"""Ranks without a line in the logs."""

from nccl_runbook.messages.facts import Logs, RankLog


def unheard(logs: Logs) -> list[RankLog]:
    """The one rank without a line in the file with the lines of all others, which wait in one call of one
    group; else empty. Several missing ranks may be on a host that this file does not cover."""
    late, files = [r for r in logs.ranks if r.timeouts], {file for row in logs.ranks for file in row.files}
    size = max((max(row.rank + 1, row.nranks or 0) for row in logs.ranks), default=0)
    absent = sorted(set(range(size)) - {row.rank for row in logs.ranks}) if len(files) == 1 else []
    calls = {(r.timeouts[0].group, r.timeouts[0].op, r.timeouts[0].seq) for r in late}
    return [RankLog(rank, [], []) for rank in absent if len(calls) == len(absent) == 1 < len(late)]
