"""The verdict document: what the records of one run add up to. It merges and counts;
it judges nothing itself."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields

from nccl_runbook.causes.causes import causes as all_causes
from nccl_runbook.core.facts import grouped
from nccl_runbook.core.findings import (
    NOTHING_KNOWN,
    STATUSES,
    UNDECIDED,
    Evidence,
    Finding,
    Remedy,
    Severity,
    exit_code,
    verdict,
    worst_first,
)
from nccl_runbook.core.records import Judged, Record
from nccl_runbook.report.verdict_document import AT_WORK, TO_COME, Cause, RunInfo, StepEntry, VerdictDocument
from nccl_runbook.report.verdict_sentence import (
    MEASURED,
    headline,
    leading,
    same_setting,
    tests_nothing,
    verdict_sentence,
)

VERDICT_STEP = "99-verdict"  # shows the sum, so it is no part of it


def verdict_document(run: RunInfo, records: Sequence[Record]) -> VerdictDocument:
    """The document for these records; 99-verdict's own record does not count."""
    by_name = {r.step: r for r in records if r.step != VERDICT_STEP}
    names = [n for n in dict.fromkeys([*run.planned, *sorted(by_name)]) if n != VERDICT_STEP]
    steps = [_entry(name, by_name.get(name), run) for name in names]
    # a run that was stopped proves no health
    word = verdict(
        [
            *((s.status, s.notebook in run.asked) for s in steps if not tests_nothing(s)),
            *([("unknown", False)] if run.interrupted else []),
        ]
    )
    shown = [by_name[n] for n in names if n in by_name]
    made = {s.notebook for s in steps if s.status not in ("unknown", "skipped")}
    causes, judged = merge_causes(shown, made), _judged(shown)
    done = sum(r.status != "running" and not (run.interrupted and r.step in run.not_run) for r in shown)
    return VerdictDocument(
        run=run,
        verdict=word,
        sentence=verdict_sentence(word, run, steps, causes, judged, done),
        exit_code=128 + run.signal if run.signal else exit_code(word, run.fail_on),
        judged=judged,
        causes=causes,
        steps=steps,
        not_looked_at=[f"{r.step}: {line}" for r in shown for line in r.not_looked_at]
        + _different(shown)
        + [
            f"{step}: its notebook: {why}"
            for step, why in run.not_run.items()
            if step == VERDICT_STEP and not run.interrupted
        ],
    )


def _entry(name: str, record: Record | None, run: RunInfo) -> StepEntry:
    if record is not None and record.status != "running":
        return StepEntry(
            notebook=name,
            status=record.status,
            reason=record.reason,
            wall_s=record.wall_s,
            findings=worst_first(record.findings),
            record=f"{name}.json",
        )
    return StepEntry(
        notebook=name,
        status="unknown",
        reason=_why_open(name, record is not None, run),
        record=f"{name}.json" if record else "",
    )


def _why_open(name: str, has_begun: bool, run: RunInfo) -> str:
    """Why a step has no result."""
    if name in run.not_run:
        return run.not_run[name]
    if run.interrupted:
        return (
            "the run was interrupted during this step"
            if has_begun
            else "not run: the run was interrupted before this step"
        )
    if not run.command:
        return f"{name} has not finished"
    return AT_WORK if has_begun else TO_COME


def merge_causes(records: Iterable[Record], made: Collection[str] = ()) -> list[Cause]:
    """Causes of all findings, most certain first: the best status wins; evidence is joined, that of a cure
    that was tried first. A ruling-out elsewhere becomes ``against``. ``made``: steps that are done, which no
    remedy asks for again."""
    named = grouped(
        (f.cause, (record.step, f)) for record in records for f in record.findings if f.cause is not None
    )
    return sorted(
        (
            _merged(cause, sorted(findings, key=lambda one: not one[1].tried), made)
            for cause, findings in named.items()
        ),
        key=lambda c: STATUSES.index(c.status),
    )


def _merged(cause: str, findings: list[tuple[str, Finding]], made: Collection[str]) -> Cause:
    best = min((f for _, f in findings), key=lambda f: (STATUSES.index(f.status or "ruled-out"), not f.tried))
    opposed = {"ruled-out"} - {best.status}  # what such a finding saw speaks against the cause
    pro = [e for step, f in findings if f.status not in opposed for e in _sourced(step, f.evidence)]
    contra = [
        e
        for step, f in findings
        for e in _sourced(step, (*f.evidence, *f.against) if f.status in opposed else f.against)
    ]
    every = [f for _, f in findings]
    # who named the rank, or tried the cure, knows more than a message
    named = (
        [f for f in every if f.id == "hang-told"]
        or [finding for f in every if f.tried for finding in (f, *same_setting(f, every))]
        or every
    )
    remedies = (
        [] if best.status == "ruled-out" else [r for f in named if f.status != "ruled-out" for r in f.remedy]
    )
    plainly = {(f"If this is the cause: {r.text}", r.lines) for r in remedies}
    return Cause(
        id=cause,
        status=best.status,
        title=all_causes()[cause].title if best.id in MEASURED else headline(best, every),
        evidence=[e for e in _told_once(pro) if not _asks([e.text], made)],
        against=_told_once(contra),
        remedy=[
            r
            for r in dict.fromkeys(remedies)
            if (r.text, r.lines) not in plainly and not _asks(r.lines, made)
        ],
    )


def _asks(texts: Iterable[str], made: Collection[str]) -> bool:
    return any(f"nccl-runbook run --step {step}" in text for text in texts for step in made)


def _sourced(step: str, evidence: Iterable[Evidence]) -> list[Evidence]:
    return [Evidence(e.text, f"{step}: {e.source}" if e.source else step) for e in evidence]


def _told_once(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Equal words of several steps appear once, with the first place: the findings of each step hold the
    rest."""
    return [same[0] for same in grouped((e.text, e) for e in evidence).values()]


def _judged(records: Iterable[Record]) -> Judged:
    """The software of the first step that names any, completed from later steps that
    judged the same interpreter."""
    judged = [r.judged for r in records if r.judged != Judged()]
    first = next(iter([j for j in judged if j.torch] or judged), Judged())
    same = [j for j in judged if not j.python or j.python == first.python]
    return Judged(
        **{
            f.name: next(
                (value for j in (first, *same) if (value := getattr(j, f.name))), getattr(first, f.name)
            )
            for f in fields(Judged)
        }
    )


def _different(records: Iterable[Record]) -> list[str]:
    """A line if steps judged different software: then the first line of the page does
    not speak for all of them."""
    by_software = grouped(
        ((r.judged.python, r.judged.torch, r.judged.nccl), r.step) for r in records if r.judged.torch
    )
    if len(by_software) < 2:
        return []
    software = [
        f"{', '.join(steps)}: {python or 'python'}, torch {torch}, NCCL {nccl or '?'}"
        for (python, torch, nccl), steps in by_software.items()
    ]
    return [f"the same software in every step: {'; '.join(software)}"]


def fixes(document: VerdictDocument) -> list[tuple[str, list[Remedy]]]:
    """(title, remedies): first what leads, then most certain first: of established and likely causes, then of
    findings from WARN up without a cause; of what is only noted, only if nothing is wrong. If there are
    neither: of unknown findings, then, unless a possible cause says more, of unexplained ones."""
    free = worst_first(
        f for s in document.steps for f in s.findings if f.cause is None and f.remedy and f.id != UNDECIDED
    )
    bad = [f for f in free if f.severity in (Severity.BROKEN, Severity.WARN)]
    serious = {
        f.cause
        for s in document.steps
        for f in s.findings
        if f.severity not in (Severity.NOTE, Severity.OK, Severity.SKIPPED)
        or document.verdict not in ("broken", "degraded")
    }
    sure = [
        *(
            (c.title, c.remedy)
            for c in document.causes
            if c.status in ("established", "likely") and c.remedy and c.id in serious
        ),
        *((f.title, list(f.remedy)) for f in bad if f.remedy != (NOTHING_KNOWN,)),
    ]
    unexplained = [] if any(c.status == "possible" and c.remedy for c in document.causes) else bad
    open_ones = [f for f in free if f.severity is Severity.UNKNOWN] or unexplained
    cards = sure or [(f.title, list(f.remedy)) for f in open_ones]
    if lead := leading(document.steps, document.causes):
        ahead = {lead.title, *(c.title for c in document.causes if c.id == lead.cause)}
        cards.sort(key=lambda card: card[0] not in ahead)
    # each remedy stands once
    first = {r: at for at, (_, remedies) in reversed([*enumerate(cards)]) for r in remedies}
    return [
        (title, kept)
        for at, (title, remedies) in enumerate(cards)
        if (kept := [r for r in remedies if first[r] == at])
    ]
