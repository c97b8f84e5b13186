"""Ranks of several hosts that TCP connections join."""

import re

from nccl_runbook.core.facts import known
from nccl_runbook.hang.live.faults.judge_paths import Members

HERE_ONLY = re.compile(r"127\.|\[::1\]|172\.17\.")


def connected(some: Members, others: Members) -> bool:
    """Whether a TCP connection joins two ranks that were started with one MASTER_PORT, or none. Loopback and
    Docker's bridge have the same addresses on every host and do not count."""
    ends = {
        (r.variables.get("MASTER_PORT"), s.local, s.remote)
        for r, _ in some
        for s in known(r.sockets)
        if not HERE_ONLY.match(s.local)
    }
    return any(
        (r.variables.get("MASTER_PORT"), s.remote, s.local) in ends
        for r, _ in others
        for s in known(r.sockets)
    )
