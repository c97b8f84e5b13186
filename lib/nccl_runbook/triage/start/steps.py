"""In which order the steps decide what the user brought, and why each is in the plan."""

from collections.abc import Iterable

from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.facts import Logs
from nccl_runbook.messages.read import CONTEXT
from nccl_runbook.triage.start.facts import Start
from nccl_runbook.triage.start.symptoms import StepText, Symptom, matching, step_texts, symptoms

WITHOUT_REASON = "rules out the rest"


def recognised(start: Start) -> list[tuple[Symptom, LogLine]]:
    """Symptoms in what was brought with their first line: the user's own words, then the log's in the order of the table."""
    own = _first_lines(LogLine(CONTEXT, number, text) for number, text in enumerate(start.symptom.splitlines(), 1))
    printed = _first_lines(_kept(start.logs) if start.logs else [])
    first = {**printed, **own}
    ordered = sorted(first, key=lambda name: (name not in own, list(symptoms()).index(name)))
    return [(symptoms()[name], first[name]) for name in ordered]


def _kept(logs: Logs) -> list[LogLine]:
    """The lines of the log that say something."""
    known = [line for seen in logs.seen.values() for line in seen.lines]
    ranks = [t.at for r in logs.ranks for t in r.timeouts] + [r.first_error for r in logs.ranks]
    return [line for line in (*known, *ranks, logs.failed, logs.timeout, *(u.first for u in logs.unknown)) if line]


def _first_lines(lines: Iterable[LogLine]) -> dict[str, LogLine]:
    first: dict[str, LogLine] = {}
    for line in lines:
        for symptom in matching(line.text):
            first.setdefault(symptom.id, line)
    return first


def deciding(lines: Iterable[str]) -> list[str]:
    """The steps that decide what lines point to, first the cheapest; [] if no single step does."""
    return list(dict.fromkeys(step for line in lines for symptom in matching(line) for step in symptom.steps))


def plan(start: Start) -> list[tuple[StepText, str]]:
    """Every step once with the reason that it is in the plan: first those that decide, then those that rule the rest out."""
    reasons: dict[str, str] = {}
    for symptom, _ in recognised(start):
        for step in symptom.steps:
            reasons.setdefault(step, f"decides: {symptom.words}")
    names = [*reasons, *(name for name in step_texts() if name not in reasons)]
    return [(step_texts()[name], reasons.get(name, WITHOUT_REASON)) for name in names]
