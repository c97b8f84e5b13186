"""The one sentence of a verdict."""

from collections.abc import Iterable, Sequence

from nccl_runbook.causes.causes import causes as all_causes
from nccl_runbook.core.facts import counted
from nccl_runbook.core.findings import STATUSES, UNDECIDED, Finding, Severity, quoted
from nccl_runbook.core.records import Judged
from nccl_runbook.report.verdict_document import Cause, RunInfo, StepEntry, is_running

START_STEP = "00-start"  # only reads what was given and tests nothing: success does not prove health
AGAINST_STEP = "98-against"  # lays a good run beside this one: that, too, tests nothing
CHANGED = "changed since the good run"  # the source of the evidence that could explain what leads


DONE = ("ok", "note")


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


MEASURED = ("hang-told", "transport-at-fault")  # say what happened, not why


def tests_nothing(step: StepEntry) -> bool:
    """Whether the step is done and tests nothing by itself (start, comparison)."""
    return step.notebook in (START_STEP, AGAINST_STEP) and step.status in DONE


def verdict_sentence(
    word: str, run: RunInfo, steps: list[StepEntry], causes: list[Cause], judged: Judged, done: int
) -> str:
    """The verdict in one sentence."""
    trouble = _trouble(word, steps, causes) if word in ("broken", "degraded") else ""
    if is_running(run, steps):
        reasons = [_bare(s.reason) for s in steps if s.status in DONE and s.reason]
        so_far = f"; so far: {trouble}" if trouble else f"; so far: {reasons[-1]}" if reasons else ""
        return f"Running: {done} of {counted(len(steps), 'step')} done{so_far}."
    tail = f"; interrupted after {done} of {counted(len(steps), 'step')}" if run.interrupted else ""
    if trouble:
        return f"{trouble}{tail}{_changed(steps)}."
    if word == "healthy":
        return f"Healthy: {_what_passed([s for s in steps if s.notebook != AGAINST_STEP], judged)}{tail}."
    return f"Unknown: {tail.removeprefix('; ') or _what_is_open(run, steps)}."


def _changed(steps: Iterable[StepEntry]) -> str:
    """What changed since the good run and could explain the leading finding; empty without such a change."""
    changes = [e.text for s in steps for f in s.findings for e in f.evidence if e.source == CHANGED]
    return "".join(f"; since the good run, {text}" for text in changes[:1])


def _bare(text: str) -> str:
    return text.strip().rstrip(".")


def leading(steps: Iterable[StepEntry], causes: Iterable[Cause]) -> Finding | None:
    """The finding that leads; None if nothing is wrong, or a failure without a cause comes first. Order:
    proven, then worst, then by PROOF, then with a cure that was tried, then with a more than possible cause.
    Dumps or a look that show a missing rank are proof; the death of a rank does not say why."""
    status_of = {c.id: c.status for c in causes}

    def order(one: tuple[str, Finding]) -> tuple[bool, bool, int, bool, bool, int, int]:
        step, finding = one
        status = status_of.get(finding.cause or "", "")
        proven = status == "established" or (
            step == "06-timeouts" and status == "likely" and finding.cause != "peer-crashed"
        )
        return (
            not proven,
            finding.severity is not Severity.BROKEN,
            PROOF.get(step, 4),
            not finding.tried,  # with a cure beside a control
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


def headline(finding: Finding, others: Iterable[Finding]) -> str:
    """The finding's title. If an experiment proves a setting ("NAME=VALUE: ..."), what ``others`` say about
    it comes first ("NAME: VALUE names nothing")."""
    about = same_setting(finding, others) if finding.tried else []
    if not about:
        return finding.title
    name, _, value = finding.setting.partition("=")
    what = about[0].title.replace(f"{name}: {value} ", f"{finding.setting} ", 1)
    return f"{what}; {finding.title.removeprefix(f'{finding.setting}: ')}"


def same_setting(finding: Finding, others: Iterable[Finding]) -> list[Finding]:
    """Those of ``others`` with the same cause that are about the same value of the same setting."""
    return [
        f
        for f in others
        if f.setting and (f.setting, f.cause) == (finding.setting, finding.cause) and f != finding
    ]


def _trouble(word: str, steps: Sequence[StepEntry], causes: list[Cause]) -> str:
    """What leads, behind the verdict."""
    lead = leading(steps, causes)
    if lead is None:
        whys = [
            *(_bare(f.title) for s in steps for f in s.findings if f.id == UNDECIDED),
            *(f"{s.notebook} ({_bare(s.reason)})" for s in steps if s.status in ("broken", "warn")),
        ]
        return f"{word.capitalize()}: {''.join(whys[:1])}"
    status = next((c.status for c in causes if c.id == lead.cause), lead.status or "")
    trouble = _bare(headline(lead, (f for s in steps for f in s.findings))) or lead.id
    if lead.id in MEASURED and lead.cause:  # what happened is seen; how sure is why
        return f"{word.capitalize()}: {trouble}{how_sure(lead.cause, status)}"
    return (
        f"{word.capitalize()}: {trouble}"
        + (f" ({status.replace('-', ' ')})" if status else "")
        + _printed(lead, steps)
    )


def how_sure(cause: str | None, status: str | None) -> str:
    """ " (likely: one rank is busy on the host)" behind a sentence that says what happened; empty without a
    status."""
    title = f": {all_causes()[cause].title}" if cause else ""
    return f" ({status}{title})" if status else ""


def _printed(lead: Finding, steps: Sequence[StepEntry]) -> str:
    """What the line that names the cause shows, or the line, with its place; empty if no log shows it."""
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
        return "no step wrote a record"
    if not unknown:
        return "no step tested anything" if any(map(tests_nothing, steps)) else "every step was skipped"
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
