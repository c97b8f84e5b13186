"""From the given evidence to one record for each subject that has something to say of it;
reads only, without torch."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from nccl_runbook.against import judge as against_judge
from nccl_runbook.against.facts import Comparison
from nccl_runbook.against.table import tables as against_tables
from nccl_runbook.case.gathered import Gathered, of_logs
from nccl_runbook.case.given import Brought
from nccl_runbook.case.judge import (
    DUMPS,
    Test,
    met,
    next_test,
    sentence,
    to_collect,
)
from nccl_runbook.causes.causes import in_logs
from nccl_runbook.core.facts import Gap, grouped, utc_now
from nccl_runbook.core.findings import Evidence, Finding, Severity, exit_code, step_status, worst_first
from nccl_runbook.core.records import Record, load_all, of_findings
from nccl_runbook.hang.facts import Hang
from nccl_runbook.hang.live.facts import Live
from nccl_runbook.logs.file import Limit
from nccl_runbook.logs.kind import READ_BY_HANG
from nccl_runbook.messages.facts import Logs
from nccl_runbook.messages.read import collect
from nccl_runbook.report.verdict import verdict_document
from nccl_runbook.report.verdict_document import RunInfo, VerdictDocument
from nccl_runbook.report.verdict_sentence import AGAINST_STEP, START_STEP, leading
from nccl_runbook.triage.hypotheses.judge_hypothesis import Answer


@dataclasses.dataclass(frozen=True)
class Start:
    """What was given to 00-start. ``logs``: what the log and the symptom hold; None if neither was given.
    ``hang``: what dumps and stacks among the files show; None without any."""

    logs: Logs | None
    hang: Hang | None = None


MOST_NAMED = 8  # logs in a line to copy
LIMIT_S = 5.0  # somebody waits for the first answer; 07-logs takes longer


def collect_start(symptom: str, log: str) -> Start:
    """The symptom's text and the log at this path; "" for what was not given. No GPU is touched.

    ``log``: a file, folder or archive, or several separated by a colon.
    """
    limit = Limit(LIMIT_S)
    logs = collect(log.strip(), symptom.strip(), limit=limit) if symptom.strip() or log.strip() else None
    return Start(logs, hang_of(logs, log.strip(), limit) if logs else None)


def hang_of(logs: Logs, paths: Sequence[str] | str, limit: Limit) -> Hang | None:
    """What recorder dumps and stacks among the files of these logs hold, None without any."""
    if not any(READ_BY_HANG in f.kind + f.problem for f in logs.files):
        return None
    from nccl_runbook.hang.read import collect as collect_hang

    return collect_hang(paths, limit)


SETTINGS, PLAN = "02-environment", "plan"


@dataclasses.dataclass(frozen=True)
class Case:
    """What was gathered, added up. ``lead``: the strongest proof, None where nothing is wrong
    or no cause stands out; ``test``: what to do next; ``collect``: lines for the job's next run,
    that collect what is missing."""

    document: VerdictDocument
    found: Gathered
    lead: Finding | None
    test: Test | None
    collect: tuple[str, ...] = ()


def case(found: Gathered, name: str, command: str, fail_on: str) -> Case:
    """The one answer. ``name`` and ``command``: of the command that was called, and
    the line that repeats it."""
    found = dataclasses.replace(
        found, records=[_together(same) for same in grouped((r.step, r) for r in found.records).values()]
    )
    names = [
        f.name for f in (found.logs.logs.files if found.logs else ()) if f.lines and os.path.isfile(f.name)
    ][:MOST_NAMED]
    found = dataclasses.replace(
        found,
        records=[
            dataclasses.replace(r, findings=[_named(f, names) for f in r.findings]) for r in found.records
        ],
    )
    steps = [r.step for r in found.records]
    ended = {
        r.step: f"{r.step} had not finished when its run ended"
        for r in found.records
        if r.status == "running"
    }
    run = RunInfo(id=name, started=utc_now(), command=command, planned=steps, asked=steps, not_run=ended)
    document = verdict_document(run, found.records)
    if found.compared:
        compared, record = beside(found.compared, document)
        found = dataclasses.replace(found, compared=compared, records=[*found.records, record])
        document = verdict_document(run, found.records)
    lead = leading(document.steps, document.causes)
    document = dataclasses.replace(
        document, sentence=sentence(document), exit_code=exit_code(document.verdict, fail_on)
    )
    told = {h.cause: h.decides for h in found.logs.hypotheses} if found.logs else {}
    test = next_test(document, lead, [c.id for c in found.fits], found.steps, told)
    collect = (
        to_collect(
            document,
            [one.line for one in (*told.values(), *([test] if test else []))],
            found.logs.logs,
            found.dumps is not None,
            found.variables,
        )
        if found.logs
        else ()
    )
    test = test and dataclasses.replace(test, line=in_logs(test.line, names))
    return Case(document, found, lead, test, collect)


def _named(finding: Finding, logs: Sequence[str]) -> Finding:
    """With the names of the logs in the lines to copy."""
    lines = [tuple(in_logs(line, logs) for line in r.lines) for r in finding.remedy]
    return dataclasses.replace(
        finding,
        remedy=tuple(dataclasses.replace(r, lines=own) for r, own in zip(finding.remedy, lines, strict=True)),
        evidence=tuple(
            dataclasses.replace(e, text=in_logs(e.text, logs)) if e.text.startswith("decides: ") else e
            for e in finding.evidence
        ),
    )


def beside(compared: Comparison, document: VerdictDocument) -> tuple[Comparison, Record]:
    """The comparison, judged for what leads, and as a step of its own."""
    judged = against_judge.explained(compared, leading(document.steps, document.causes))
    return judged, of_findings(AGAINST_STEP, against_judge.findings(judged), against_tables(judged))


def _together(same: Sequence[Record]) -> Record:
    """Records of one step as one: what was given now, and what a run that may have
    ended too early had found."""
    done = [r for r in same if r.status != "running"] or [*same]
    findings = worst_first(dict.fromkeys(f for r in done for f in r.findings))
    status, reason = step_status(findings) if len(done) > 1 else (done[0].status, done[0].reason)
    return dataclasses.replace(
        done[0],
        status=str(status),
        reason=reason,
        findings=findings,
        tables=[t for r in done for t in r.tables],
        not_looked_at=[line for r in done for line in r.not_looked_at],
    )


def of_run(document: VerdictDocument) -> Case:
    """The answer of a whole run, whose records were added up."""
    lead = leading(document.steps, document.causes)
    return Case(document, Gathered([]), lead, next_test(document, lead, (), (), {}))


def gather(
    brought: Brought,
    stdin: BinaryIO | None,
    gpus: int,
    look: Callable[[list[int]], Live],
    compared: Comparison | None = None,
) -> Gathered:
    """The judgement of each subject. ``gpus``: of a node, 0 where nobody said; ``look``: at these processes,
    or at every rank; ``compared``: with a good run.

    Raises ValueError for a process, an allocation or a record that cannot be read.
    """
    found = left_by(brought, stdin, gpus, compared)
    if brought.pids or brought == Brought():
        found.records.extend(_live([look([int(p) for p in brought.pids])]))
    return found


def left_by(
    brought: Brought,
    stdin: BinaryIO | None = None,
    gpus: int = 0,
    compared: Comparison | None = None,
) -> Gathered:
    """The judgement of what a job left; no process is looked at. ``compared``: with a good run."""
    found = (
        logs_of(brought, stdin, compared)
        if brought.logs or brought.words
        else Gathered([], compared=compared)
    )
    plans = [*_plans(brought, gpus)]
    settings = [*_settings(brought.scripts, brought.configurations, found.variables, found.logs)]
    # a launch that is planned need not set a variable
    found.records.extend(
        [
            *(r for r in settings if not plans or {f.id for f in r.findings} != {"nothing-read"}),
            *plans,
            *(_recorded(brought.records) if brought.records else ()),
        ]
    )
    return found


def _recorded(paths: Iterable[str]) -> list[Record]:
    """Looks at several hosts as one record, and every other record as it is."""
    from nccl_runbook.hang.read_stacks import whole_looks

    loaded = [r for path in paths for r in load_all(Path(path))]
    looks = whole_looks(r.facts["live"] for r in loaded if "live" in r.facts)
    return [*_live(looks), *(r for r in loaded if not looks or "live" not in r.facts)]


def logs_of(brought: Brought, stdin: BinaryIO | None, compared: Comparison | None = None) -> Gathered:
    """Of what was printed and reported. ``compared``: with a good run."""
    limit = Limit()
    logs = collect([*brought.logs], "\n".join(brought.words), stdin, limit)
    return of_logs(logs, hang_of(logs, [p for p in brought.logs if p != "-"], limit), compared)


def of_start(start: Start) -> Case:
    """The answer to what 00-start was given."""
    nothing = Gathered(
        [
            of_findings(
                START_STEP, [Finding("nothing-brought", Severity.OK, "no log and no symptom: all steps run")]
            )
        ]
    )
    return case(of_logs(start.logs, start.hang) if start.logs else nothing, START_STEP, "", "unknown")


def _settings(
    scripts: Iterable[str], configurations: Iterable[str], variables: dict[str, str], job: Answer | None
) -> Iterator[Record]:
    """Of each file; what they set is added to ``variables``. ``job``: what the logs of the same job show."""
    from nccl_runbook.environment.facts import Environment
    from nccl_runbook.environment.judge import judge
    from nccl_runbook.environment.read_file import read

    found: list[Finding] = []
    for path in (*scripts, *configurations):
        role = read(path)
        if isinstance(role, Gap):
            found.append(Finding("not-read", Severity.UNKNOWN, role.detail, (Evidence(role.detail, path),)))
        elif path in scripts or role.variables:  # a configuration need not set any
            variables |= role.variables
            found += judge(Environment([role], Gap("not-run", "only a file was read")))
    if found:
        yield of_findings(SETTINGS, [met(f, job.logs) for f in found] if job else found)


def _plans(brought: Brought, gpus: int) -> Iterator[Record]:
    """Each allocation that was named; what holds none has nothing to say here."""
    named = (*brought.allocations, *brought.scripts, *brought.configurations)
    if not named:
        return
    from nccl_runbook.plan.allocation.areal_rules import newest
    from nccl_runbook.plan.answer import Plan, plans_of
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
                findings.append(
                    Finding("not-planned", Severity.UNKNOWN, str(error), (Evidence(str(error), target),))
                )
    findings += [
        dataclasses.replace(p.finding, title=f"{p.where}: {p.finding.title}" if p.where else p.finding.title)
        for p in plans
    ]
    if findings:
        yield of_findings(PLAN, findings, groups_tables(plans))


def _live(looks: list[Live]) -> Iterator[Record]:
    from nccl_runbook.hang.judge import hang_told, judge
    from nccl_runbook.hang.live import judge as live
    from nccl_runbook.hang.live.judge_hosts import together
    from nccl_runbook.hang.read import collect
    from nccl_runbook.hang.table import looked_table

    if any(one.ranks for one in looks):
        jobs = live.judge(together(looks))
        yield of_findings(
            DUMPS,
            [hang_told(judge(dataclasses.replace(collect([]), looks=looks)), still=True)],
            [looked_table(j, looks) for j in jobs],
            not_seen=dict.fromkeys(line for j in jobs for line in j.not_seen),
        )
