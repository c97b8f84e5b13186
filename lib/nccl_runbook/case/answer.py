"""From the given evidence to one record for each subject that has something to say of it; reads only, without torch."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from nccl_runbook.case.dumps import dumps_of
from nccl_runbook.case.read import Brought
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Severity
from nccl_runbook.core.records import Record, load_all, of_findings
from nccl_runbook.hang.live.facts import Live

DUMPS, LOGS, SETTINGS, PLAN = "06-timeouts", "07-logs", "02-environment", "plan"


@dataclasses.dataclass(frozen=True)
class Gathered:
    """One record for each subject; ``fits``: causes that fit the symptom and no line shows, ``steps``: those that decide the symptom."""

    records: list[Record]
    fits: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()


def gather(brought: Brought, stdin: BinaryIO | None, gpus: int, look: Callable[[list[int]], Live]) -> Gathered:
    """The judgement of each subject. ``gpus``: of a node, 0 where nobody said; ``look``: at these processes, or at every rank.

    Raises ValueError for a process, an allocation or a record that cannot be read.
    """
    found = _logs(brought, stdin)
    found.records.extend([*_settings(brought.scripts, brought.configurations), *_plans(brought, gpus)])
    if brought.pids or brought == Brought():
        found.records.extend(_live(look([int(p) for p in brought.pids])))
    found.records.extend(r for path in brought.records for r in load_all(Path(path)))
    return found


def _logs(brought: Brought, stdin: BinaryIO | None) -> Gathered:
    """Of dumps and stacks, then of what was printed and reported: each under its own step, so that neither repeats the other."""
    if not (brought.logs or brought.words):
        return Gathered([])
    from nccl_runbook.logs.file import Limit
    from nccl_runbook.messages.read import collect
    from nccl_runbook.triage.judge import answer
    from nccl_runbook.triage.start.steps import deciding
    from nccl_runbook.triage.table import fits_tables, tables

    paths, limit = list(brought.logs), Limit()
    logs = collect(paths, "\n".join(brought.words), stdin, limit)
    dumps, shown = dumps_of(logs, paths, limit)
    given = answer(logs, dumps=dumps)
    findings = [f for f in given.findings if not dumps or f is not dumps.finding]
    records = [of_findings(DUMPS, [dumps.finding], shown)] if dumps else []
    unread = [f.title for f in findings if f.id == "log-not-read"]
    records += [of_findings(LOGS, findings, [*fits_tables(given.fits), *tables(logs)], not_seen=unread)] if findings else []
    return Gathered(records, () if dumps else tuple(c.id for c in given.fits), tuple(deciding(brought.words)))


def _settings(scripts: Iterable[str], configurations: Iterable[str]) -> Iterator[Record]:
    from nccl_runbook.environment.facts import Environment
    from nccl_runbook.environment.judge import judge
    from nccl_runbook.environment.read_file import read

    found: list[Finding] = []
    for path in (*scripts, *configurations):
        role = read(path)
        if isinstance(role, Gap):
            found.append(Finding("not-read", Severity.UNKNOWN, role.detail, (Evidence(role.detail, path),)))
        elif path in scripts or role.variables:  # a configuration need not set any
            found += judge(Environment([role], Gap("not-run", "only a file was read")))
    if found:
        yield of_findings(SETTINGS, found)


def _plans(brought: Brought, gpus: int) -> Iterator[Record]:
    """Each allocation that was named; what holds none has nothing to say here."""
    named = (*brought.allocations, *brought.scripts, *brought.configurations)
    if not named:
        return
    from nccl_runbook.plan.answer import Plan, plans_of
    from nccl_runbook.plan.areal.tags import newest
    from nccl_runbook.plan.groups import Site
    from nccl_runbook.plan.table import groups_tables

    plans: list[Plan] = []
    findings: list[Finding] = []
    for target in named:
        try:
            plans += plans_of(os.path.expanduser(target), Site(gpus, "", 0, ""), newest())[0]
        except ValueError as error:
            if target in brought.allocations:
                raise
            if "--gpus" in str(error):
                findings.append(Finding("not-planned", Severity.UNKNOWN, str(error), (Evidence(str(error), target),)))
    findings += [dataclasses.replace(p.finding, title=f"{p.where}: {p.finding.title}" if p.where else p.finding.title) for p in plans]
    if findings:
        yield of_findings(PLAN, findings, groups_tables(plans))


def _live(seen: Live) -> Iterator[Record]:
    from nccl_runbook.hang.judge import hang_told, judge
    from nccl_runbook.hang.read import collect

    if seen.ranks:
        yield of_findings(DUMPS, [hang_told(judge(dataclasses.replace(collect([]), looks=[seen])))])
