"""Ranks on one host that TCP connections join. Reads only."""

import dataclasses
from typing import List

from nccl_runbook.hang.live.ask_proc import unless_gone
from nccl_runbook.hang.live.ask_processes import Process
from nccl_runbook.hang.live.ask_sockets import sockets, table
from nccl_runbook.hang.live.facts import BY_CONNECTION, LEFT_OVER


def joined(ranks: List[Process]) -> List[Process]:
    """The processes, with one job for ranks that a TCP connection joins. Ranks of several launchers with one
    MASTER_PORT, or none (a script may set it in os.environ, where /proc does not show it), are such."""
    ends = {
        (s.local, s.remote): r
        for r in ranks
        if len({r.job for r in ranks}) > 1 and not r.job.endswith(LEFT_OVER)
        for s in unless_gone([], lambda pid: sockets(pid, table(pid)), r.pid)
    }
    whole = {r.job: {r.job} for r in ranks}
    for link, one in ends.items():
        other = ends.get(link[::-1], one)
        if one.number(["MASTER_PORT"]) == other.number(["MASTER_PORT"]) and (
            one.rank is None or one.rank != other.rank
        ):
            both = whole[one.job] | whole[other.job]
            whole.update(dict.fromkeys(both, both))
    first = {job: min(r.pid for r in ranks if r.job in jobs) for job, jobs in whole.items() if len(jobs) > 1}
    return [
        dataclasses.replace(r, job=f"{BY_CONNECTION}{first[r.job]}") if r.job in first else r for r in ranks
    ]
