"""What the notebook 08-hosts asks: the hosts of a job, from parameters that are texts."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from nccl_runbook.cli import hosts as command
from nccl_runbook.cli.hosts import carriers
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Finding, Severity
from nccl_runbook.hosts import judge, read, table
from nccl_runbook.hosts.facts import Hosts
from nccl_runbook.logs.file import named

NOT_NAMED = "no hosts were named, and this shell is not in a Slurm allocation of several nodes"


def gather(
    hosts: str,
    over: str,
    job: str,
    ray: bool,
    records: str,
    python: str,
    port: int,
    ranks: bool,
    allow_busy: bool,
    within_s: float,
    say: Callable[[str], None],
) -> Hosts | Gap:
    """The answer of `nccl-runbook hosts` with these options; a Gap if no host is named. In an allocation
    that was not named, ranks start only with ``allow_busy``: a job may run there. ``within_s``: seconds.
    ValueError for unusable options."""
    if records:
        return read.read(map(Path, named(records)), command.judged)
    is_named = bool(hosts or job or ray)
    if not is_named and os.environ.get("SLURM_JOB_NUM_NODES", "1") in ("", "0", "1"):
        return Gap("not-run", NOT_NAMED)
    names, carrier = carriers.chosen(re.findall(r"[^\s,]+", hosts), job, ray, over or carriers.SSH, python)
    no_ranks = not (ranks and (is_named or allow_busy))
    return command.asked(names, carrier, carriers.port_of(port), within_s, no_ranks, say=say)


def findings(hosts: Hosts | Gap) -> list[Finding]:
    """Findings of the comparison of hosts; SKIPPED if no host was named."""
    if isinstance(hosts, Gap):
        return [Finding("hosts-not-named", Severity.SKIPPED, hosts.detail)]
    return command.judge(hosts, judge.differences(hosts.answered))


def tables(hosts: Hosts | Gap) -> Sequence[table.Table]:
    """Tables of the comparison of hosts; empty if no host was named."""
    return [] if isinstance(hosts, Gap) else table.tables(hosts, judge.differences(hosts.answered))
