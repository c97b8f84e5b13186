"""Ranks without a line in the logs."""

from collections import Counter

from nccl_runbook.messages.facts import Logs, RankLog


def unheard(logs: Logs) -> list[RankLog]:
    """The one rank without a line in the one file that holds the lines of all others, which all wait in one
    call of one group. More than one may be a host of which this file knows nothing. A group that has a name
    of its own may be without that rank, unless all others are in it."""
    files = {file for row in logs.ranks for file in row.files}
    size = max((max(row.rank + 1, row.nranks or 0) for row in logs.ranks), default=0)
    # a log may name any size
    absent = sorted(set(range(size)) - {r.rank for r in logs.ranks}) if size == len(logs.ranks) + 1 else []
    calls = Counter(
        (r.timeouts[0].group, r.timeouts[0].op, r.timeouts[0].seq) for r in logs.ranks if r.timeouts
    )
    return [
        RankLog(rank, [], [])
        for rank in absent
        for (group, _, _), late in calls.items()
        if len(files) == len(calls) == len(absent) == 1 < late
        and (late == size - 1 or group in ("", "0", "default_pg"))
    ]
