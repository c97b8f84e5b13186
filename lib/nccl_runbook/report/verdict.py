"""The verdict document: what the records of one run add up to. It merges and counts;
it judges nothing itself."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Literal

from nccl_runbook.causes.causes import causes as known
from nccl_runbook.core.facts import counted, grouped
from nccl_runbook.core.findings import (
    NOTHING_KNOWN,
    STATUSES,
    UNDECIDED,
    Evidence,
    Finding,
    Remedy,
    Severity,
    exit_code,
    quoted,
    verdict,
    worst_first,
)
from nccl_runbook.core.records import Judged, Record, some, strict

SCHEMA = "nccl-runbook/verdict/1"
VERDICT_STEP = "99-verdict"  # shows the sum, so it is no part of it
START_STEP = "00-start"  # reads what was brought and tests nothing: that it went well is no health
DONE = ("ok", "note")
POSSIBLE = "Possible: "  # before the title of a cause that its evidence does not prove
# where a finding comes from -> how strong its proof is: what ranks left or do now 0, a message
# 1, an experiment 2, a configuration 3
PROOF = {
    "06-timeouts": 0,
    "07-logs": 1,
    "03-fewer-gpus": 2,
    "04-transports": 2,
    "01-gpu-visibility": 2,
    "05-weight-sync": 2,
    "02-environment": 3,
    "plan": 3,
}
AT_WORK, _TO_COME = "still at work", "not run yet"


@strict
class RunInfo:
    """What a runner knows about its run.

    ``command``: the line that repeats the run, "" for notebooks run by hand. ``planned``: step names
    in order; ``asked``: those named on the command line. ``not_run``: step -> why it is over without a result
    of its own (kernel died, busy, out of time). A planned step with neither a finished record nor a reason
    here is still to come, unless the run was ``interrupted``; ``signal``: by which, 0 for none.
    """

    id: str
    started: str
    command: str = ""
    planned: list[str] = some(list)
    asked: list[str] = some(list)
    not_run: dict[str, str] = some(dict)
    fail_on: Literal["broken", "degraded", "unknown", "never"] = "unknown"
    interrupted: bool = False
    signal: int = 0


@strict
class Cause:
    """A cause over all steps: ``status`` is the best that any step gave it; what spoke
    against it stays beside it."""

    id: str
    status: Literal["established", "likely", "possible", "ruled-out"]
    title: str
    evidence: list[Evidence] = some(list)
    against: list[Evidence] = some(list)
    remedy: list[Remedy] = some(list)


@strict
class StepEntry:
    """One step of the run; ``record``: its file beside verdict.json, "" where it left none."""

    notebook: str
    status: Literal["ok", "note", "warn", "broken", "unknown", "skipped"]
    reason: str = ""
    wall_s: float = 0.0
    findings: list[Finding] = some(list)
    record: str = ""


@strict
class VerdictDocument:
    """verdict.json. ``sentence``: the verdict for a human; ``exit_code``: what `nccl-runbook` ends with,
    after --fail-on or a signal; ``written``: when (UTC), so that a page which says "running" long after that
    is known to be left from a run that was killed.
    """

    schema: Literal["nccl-runbook/verdict/1"] = SCHEMA
    run: RunInfo
    written: str = ""
    verdict: Literal["healthy", "degraded", "broken", "unknown"]
    sentence: str
    exit_code: int
    judged: Judged = some(Judged)
    causes: list[Cause] = some(list)
    steps: list[StepEntry] = some(list)
    not_looked_at: list[str] = some(list)

    @property
    def running(self) -> bool:
        """Whether steps are still to come."""
        return _running(self.run, self.steps)

    @property
    def tried(self) -> str:
        """What a step saw without the proposed change and with it; "" where none was tried."""
        return next((f.tried for s in self.steps for f in s.findings if f.tried), "")


def verdict_document(run: RunInfo, records: Sequence[Record]) -> VerdictDocument:
    """The document for these records; 99-verdict's own record is left out of the sum."""
    by_name = {r.step: r for r in records if r.step != VERDICT_STEP}
    names = [n for n in dict.fromkeys([*run.planned, *sorted(by_name)]) if n != VERDICT_STEP]
    steps = [_entry(name, by_name.get(name), run) for name in names]
    results = [(s.status, s.notebook in run.asked) for s in steps if not _tests_nothing(s)]
    word = verdict(
        [*results, *[("unknown", False)] * run.interrupted]
    )  # a run that was stopped proves no health
    found = [by_name[n] for n in names if n in by_name]
    causes, judged = merge_causes(found), _judged(found)
    done = sum(r.status != "running" and not (run.interrupted and r.step in run.not_run) for r in found)
    return VerdictDocument(
        run=run,
        verdict=word,
        sentence=_sentence(word, run, steps, causes, judged, done),
        exit_code=128 + run.signal if run.signal else exit_code(word, run.fail_on),
        judged=judged,
        causes=causes,
        steps=steps,
        not_looked_at=[f"{r.step}: {line}" for r in found for line in r.not_looked_at]
        + _different(found)
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
    reasons = (
        (name in run.not_run, run.not_run.get(name, "")),
        (
            run.interrupted,
            "the run was interrupted during this step"
            if record
            else "not run: the run was interrupted before this step",
        ),
        (not run.command, f"{name} has not finished"),
        (True, AT_WORK if record else _TO_COME),
    )
    reason = next(why for holds, why in reasons if holds)
    return StepEntry(notebook=name, status="unknown", reason=reason, record=f"{name}.json" if record else "")


def _tests_nothing(step: StepEntry) -> bool:
    return step.notebook == START_STEP and step.status in DONE


def _running(run: RunInfo, steps: Iterable[StepEntry]) -> bool:
    return (
        bool(run.command)
        and not run.interrupted
        and any(s.status == "unknown" and s.reason in (AT_WORK, _TO_COME) for s in steps)
    )


def merge_causes(records: Iterable[Record]) -> list[Cause]:
    """Causes named by any finding, surest first: best status wins, evidence is joined; what ruled it out
    elsewhere becomes ``against``."""
    named = grouped(
        (f.cause, (record.step, f)) for record in records for f in record.findings if f.cause is not None
    )
    return sorted(
        (_merged(cause, found) for cause, found in named.items()), key=lambda c: STATUSES.index(c.status)
    )


def _merged(cause: str, found: list[tuple[str, Finding]]) -> Cause:
    best = min((f for _, f in found), key=lambda f: STATUSES.index(f.status or "ruled-out"))
    opposed = {"ruled-out"} - {best.status}  # what such a finding saw speaks against the cause
    pro = [e for step, f in found if f.status not in opposed for e in _sourced(step, f.evidence)]
    contra = [
        e
        for step, f in found
        for e in _sourced(step, (*f.evidence, *f.against) if f.status in opposed else f.against)
    ]
    named = [f for _, f in found if f.id == "hang-told"] or [
        f for _, f in found
    ]  # who named the rank knows more than a message
    told = (
        [] if best.status == "ruled-out" else [r for f in named if f.status != "ruled-out" for r in f.remedy]
    )
    plainly = {(f"If so: {r.text}", r.lines) for r in told}
    title = known()[cause].title if best.id == "hang-told" else best.title  # it says what a rank did, not why
    return Cause(
        id=cause,
        status=best.status,
        title=title,
        evidence=_told_once(pro),
        against=_told_once(contra),
        remedy=list(dict.fromkeys(r for r in told if (r.text, r.lines) not in plainly)),
    )


def _sourced(step: str, evidence: Iterable[Evidence]) -> list[Evidence]:
    return [Evidence(e.text, f"{step}: {e.source}" if e.source else step) for e in evidence]


def _told_once(evidence: Iterable[Evidence]) -> list[Evidence]:
    """The same words of several steps appear once, with the first place: every step's
    own findings hold the rest."""
    return [same[0] for same in grouped((e.text, e) for e in evidence).values()]


def _judged(records: Iterable[Record]) -> Judged:
    """The software of the first step that names any, completed from later steps that
    judged the same interpreter."""
    known = [r.judged for r in records if r.judged != Judged()]
    if not (named := [j for j in known if j.torch] or known):
        return Judged()
    first = named[0]
    same = [j for j in known if not j.python or j.python == first.python]
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
    seen = grouped(
        ((r.judged.python, r.judged.torch, r.judged.nccl), r.step) for r in records if r.judged.torch
    )
    if len(seen) < 2:
        return []
    software = [
        f"{', '.join(steps)}: {python or 'python'}, torch {torch}, NCCL {nccl or '?'}"
        for (python, torch, nccl), steps in seen.items()
    ]
    return [f"the same software in every step: {'; '.join(software)}"]


def fixes(document: VerdictDocument) -> list[tuple[str, list[Remedy]]]:
    """What to change, surest first: (title, remedies) of established and likely causes, then of findings
    from WARN up without a cause.

    Only where neither exists: of possible causes and of what is unknown; then of what nothing explains,
    so that the page never names trouble without a way on.
    """
    free = worst_first(
        f for s in document.steps for f in s.findings if f.cause is None and f.remedy and f.id != UNDECIDED
    )
    bad = [f for f in free if f.severity in (Severity.BROKEN, Severity.WARN)]
    sure = [
        (c.title, c.remedy) for c in document.causes if c.status in ("established", "likely") and c.remedy
    ]
    sure += [(f.title, list(f.remedy)) for f in bad if f.remedy != (NOTHING_KNOWN,)]
    if not sure:
        sure = [
            (f"{POSSIBLE}{c.title}", c.remedy) for c in document.causes if c.status == "possible" and c.remedy
        ]
        sure += [(f.title, list(f.remedy)) for f in free if f.severity is Severity.UNKNOWN]
    sure = sure or [(f.title, list(f.remedy)) for f in bad]
    first = {
        r: at for at, (_, remedies) in reversed([*enumerate(sure)]) for r in remedies
    }  # each is told once
    new = [(title, [r for r in remedies if first[r] == at]) for at, (title, remedies) in enumerate(sure)]
    return [(title, remedies) for title, remedies in new if remedies]


def _sentence(
    word: str, run: RunInfo, steps: list[StepEntry], causes: list[Cause], judged: Judged, done: int
) -> str:
    trouble = _trouble(word, steps, causes) if word in ("broken", "degraded") else ""
    if _running(run, steps):
        known = [_bare(s.reason) for s in steps if s.status in DONE and s.reason]
        so_far = f"; so far: {trouble}" if trouble else f"; so far: {known[-1]}" if known else ""
        return f"Running: {done} of {counted(len(steps), 'step')} done{so_far}."
    tail = f"; interrupted after {done} of {counted(len(steps), 'step')}" if run.interrupted else ""
    if trouble:
        return f"{trouble}{tail}."
    if word == "healthy":
        return f"Healthy: {_what_passed(steps, judged)}{tail}."
    return f"Unknown: {tail.removeprefix('; ') or _what_is_open(run, steps)}."


def _bare(text: str) -> str:
    return text.strip().rstrip(".")


def leading(steps: Iterable[StepEntry], causes: Iterable[Cause]) -> Finding | None:
    """The finding that leads, None if nothing is wrong or if a failure without a cause comes first.
    What is proven leads, then the worst, then by PROOF, then what has a cause that is not only possible.

    A rank that dumps or a look show missing is proof; that a rank died says not why it did.
    """
    status_of = {c.id: c.status for c in causes}

    def order(one: tuple[str, Finding]) -> tuple[bool, bool, int, bool, int, int]:
        step, finding = one
        status = status_of.get(finding.cause or "", "")
        proven = (
            status == "established"
            or step == "06-timeouts"
            and status == "likely"
            and finding.cause != "peer-crashed"
        )
        return (
            not proven,
            finding.severity is not Severity.BROKEN,
            PROOF.get(step, 4),
            status not in ("established", "likely"),
            [*PROOF, step].index(step),
            STATUSES.index(status) if status else len(STATUSES),
        )

    bad = [
        (s.notebook, f)
        for s in steps
        for f in s.findings  # a failure without a cause leads before a setting
        if f.severity in (Severity.BROKEN, Severity.WARN) or f.id == UNDECIDED
    ]
    first = min(bad, key=order)[1] if bad else None
    return None if first and first.id == UNDECIDED else first


def _trouble(word: str, steps: Sequence[StepEntry], causes: list[Cause]) -> str:
    """What leads, behind the verdict."""
    lead = leading(steps, causes)
    if lead is None:
        whys = [
            *(_bare(f.title) for s in steps for f in s.findings if f.id == UNDECIDED),
            *(f"{s.notebook} ({_bare(s.reason)})" for s in steps if s.status in ("broken", "warn")),
        ]
        return f"{word.capitalize()}: {''.join(whys[:1])}"
    status = next((c.status for c in causes if c.id == lead.cause), "")
    said = _bare(lead.title) or lead.id
    if lead.id == "hang-told" and lead.cause:  # what a rank did is seen; how sure is why
        return f"{word.capitalize()}: {said} ({status}: {known()[lead.cause].title})"
    return (
        f"{word.capitalize()}: {said}"
        + (f" ({status.replace('-', ' ')})" if status else "")
        + _printed(lead, steps)
    )


def _printed(lead: Finding, steps: Sequence[StepEntry]) -> str:
    """What the line that names the cause says, or the line, and where it stands; "" for what no log shows."""
    decoded = [_bare(e.text.split(". ")[0]) for e in lead.evidence if e.source == "decoded"] or [
        quoted(e.text) for e in lead.evidence
    ]
    in_logs = (
        lead.cause
        and lead.evidence
        and any(lead in s.findings for s in steps if s.notebook in (START_STEP, "07-logs"))
    )
    return f": {decoded[0]} ({lead.evidence[0].source})" if in_logs else ""


def _what_passed(steps: list[StepEntry], judged: Judged) -> str:
    passed = [s for s in steps if s.status in DONE]
    software = ", ".join(
        f"{name} {version}" for name, version in (("torch", judged.torch), ("NCCL", judged.nccl)) if version
    )
    where = f" on {counted(len(judged.gpus), 'GPU')}" if judged.gpus and software else ""
    left = len(steps) - len(passed)
    return f"{software}{where}{'; ' if software else ''}{counted(len(passed), 'step')} passed" + (
        f", {left} skipped" if left else ""
    )


def _what_is_open(run: RunInfo, steps: list[StepEntry]) -> str:
    """Why nothing can be said: the reason that most steps give, and what did pass
    (a rehearsal on Gloo by name)."""
    unknown = [
        s for s in steps if s.status == "unknown" or (s.status == "skipped" and s.notebook in run.asked)
    ]
    if not steps:
        return "no step left a record"
    if not unknown:
        return "no step tested anything" if any(map(_tests_nothing, steps)) else "every step was skipped"
    reasons = [_bare(s.reason) or f"{s.notebook} gave no reason" for s in unknown]
    rehearsed = [
        _bare(f.title)
        for s in steps
        for f in s.findings
        if f.id.startswith("rehears") and f.severity.value in (*DONE, "unknown")
    ]
    lead = max(dict.fromkeys(reasons), key=reasons.count)
    if lead in rehearsed:
        return lead
    others = sum(1 for r in reasons if r != lead and r not in rehearsed)
    tail = (
        rehearsed[0].split(": ", 1)[-1]
        if rehearsed
        else f"{sum(s.status in DONE for s in steps)} of {counted(len(steps), 'step')} passed"
    )
    return lead + (f" ({counted(others, 'more reason')})" if others else "") + f"; {tail}"
