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

NOT_NAMED = "no hosts were named, and this shell is in no Slurm allocation of several nodes"


def gather(
    hosts: str,
    over: str,
    job: str,
    ray: bool,
    records: str,
    python: str,
    port: int,
    ranks: bool,
    within_s: float,
    say: Callable[[str], None],
) -> Hosts | Gap:
    """As `nccl-runbook hosts` with these options; a Gap where nothing names a host. Raises
    ValueError for what cannot be used; ``within_s``: seconds."""
    if records:
        return read.read(map(Path, named(records)), command.judged)
    if not (hosts or job or ray or int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) > 1):
        return Gap("not-run", NOT_NAMED)
    names, carrier = carriers.chosen(re.findall(r"[^\s,]+", hosts), job, ray, over or carriers.SSH, python)
    port = port or int(os.environ.get("MASTER_PORT") or command.RENDEZVOUS_PORT)
    return command.asked(names, carrier, port, within_s, not ranks, say=say)


def findings(hosts: Hosts | Gap) -> list[Finding]:
    if isinstance(hosts, Gap):
        return [Finding("hosts-not-named", Severity.SKIPPED, hosts.detail)]
    return command.judge(hosts, judge.differences(hosts.answered))


def tables(hosts: Hosts | Gap) -> Sequence[table.Table]:
    return [] if isinstance(hosts, Gap) else table.tables(hosts, judge.differences(hosts.answered))
