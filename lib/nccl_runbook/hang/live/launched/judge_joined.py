"""Ranks of several hosts that TCP connections join."""

from nccl_runbook.core.facts import known
from nccl_runbook.hang.live.faults.judge_paths import Members


def connected(some: Members, others: Members) -> bool:
    """A TCP connection joins two ranks that were started with one MASTER_PORT, or none."""
    ends = {(r.variables.get("MASTER_PORT"), s.local, s.remote) for r, _ in some for s in known(r.sockets)}
    return any(
        (r.variables.get("MASTER_PORT"), s.remote, s.local) in ends
        for r, _ in others
        for s in known(r.sockets)
    )
