"""Everything that was read, added up to one answer."""

import dataclasses
import os
import re
from collections.abc import Sequence

from nccl_runbook.against import judge as against_judge
from nccl_runbook.against.facts import Comparison
from nccl_runbook.against.table import tables as against_tables
from nccl_runbook.case.gathered import Gathered, of_logs
from nccl_runbook.case.judge import (
    Test,
    next_test,
    of_words,
    sentence,
    to_collect,
)
from nccl_runbook.case.read import SETTINGS, Start
from nccl_runbook.causes.causes import in_logs
from nccl_runbook.core.facts import grouped, utc_now
from nccl_runbook.core.findings import Finding, Severity, exit_code, step_status, worst_first
from nccl_runbook.core.records import Record, of_findings
from nccl_runbook.report.verdict import verdict_document
from nccl_runbook.report.verdict_document import RunInfo, VerdictDocument
from nccl_runbook.report.verdict_sentence import AGAINST_STEP, START_STEP, leading

MOST_NAMED = 8  # logs


@dataclasses.dataclass(frozen=True)
class Case:
    """The sum of everything gathered. ``lead``: the strongest proof, None if nothing is wrong or no cause
    stands out; ``test``: what to do next; ``collect``: lines that make the job's next run collect what is
    missing."""

    document: VerdictDocument
    found: Gathered
    lead: Finding | None
    test: Test | None
    collect: tuple[str, ...] = ()


def case(gathered: Gathered, name: str, command: str, fail_on: str) -> Case:
    """The one answer. ``name``, ``command``: the command that was called, and the line that repeats it."""
    names = [
        f.name
        for f in (gathered.logs.logs.files if gathered.logs else ())
        if f.lines and os.path.isfile(f.name)
    ][:MOST_NAMED]
    gathered = dataclasses.replace(
        gathered,
        records=[
            dataclasses.replace(r, findings=[_named(f, names) for f in r.findings])
            for r in map(_together, grouped((r.step, r) for r in gathered.records).values())
        ],
    )
    steps = [r.step for r in gathered.records]
    ended = {
        r.step: f"{r.step} had not finished when its run ended"
        for r in gathered.records
        if r.status == "running"
    }
    run = RunInfo(id=name, started=utc_now(), command=command, planned=steps, asked=steps, not_run=ended)
    document = verdict_document(run, gathered.records)
    if gathered.compared:
        compared, record = beside(gathered.compared, document)
        gathered = dataclasses.replace(gathered, compared=compared, records=[*gathered.records, record])
        document = verdict_document(run, gathered.records)
    lead = leading(document.steps, document.causes)
    document = dataclasses.replace(
        document, sentence=sentence(document), exit_code=exit_code(document.verdict, fail_on)
    )
    decisions = {h.cause: h.decides for h in gathered.logs.hypotheses} if gathered.logs else {}
    test = of_words(gathered.logs) or next_test(
        document, lead, [c.id for c in gathered.fits], gathered.steps, decisions
    )
    if (
        test
        and lead
        and lead.status == "likely"
        and (steps == [SETTINGS] or (names and re.match(r"grep [^\n]* LOGS?\b", test.line)))
    ):
        test = None  # what a search in these logs shows is in the answer; a script shows its settings
    collect = (
        to_collect(
            document,
            [*(f"{one.probe}: {one.line}" for one in decisions.values()), *([test.line] if test else [])],
            gathered.logs.logs,
            gathered.dumps is not None,
            gathered.variables,
        )
        if gathered.logs
        else ()
    )
    next_lines = {line.partition("   #")[0] for line in test.line.splitlines()} if test else set()
    collect = tuple(line for line in collect if line.partition("   #")[0] not in next_lines)
    test = test and dataclasses.replace(test, line=in_logs(test.line, names))
    return Case(document, gathered, lead, test, collect)


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
    """(the comparison judged for the leading finding, its record as a step)."""
    judged = against_judge.explained(compared, leading(document.steps, document.causes))
    return judged, of_findings(AGAINST_STEP, against_judge.findings(judged), against_tables(judged))


def _together(same: Sequence[Record]) -> Record:
    """The records of one step as one: what was given now, and what an incomplete run had found."""
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
    """The answer of a whole run, from its records."""
    lead = leading(document.steps, document.causes)
    return Case(document, Gathered([]), lead, next_test(document, lead, (), (), {}))


def of_start(start: Start) -> Case:
    """The answer to what 00-start was given."""
    nothing = Gathered(
        [
            of_findings(
                START_STEP,
                [
                    Finding(
                        "nothing-brought", Severity.OK, "no log and no symptom was given, so all steps run"
                    )
                ],
            )
        ]
    )
    return case(of_logs(start.logs, start.hang) if start.logs else nothing, START_STEP, "", "unknown")
