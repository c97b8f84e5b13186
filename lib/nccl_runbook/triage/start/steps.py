"""In which order the steps decide what the user brought, and why each is in the plan."""

from __future__ import annotations

from nccl_runbook.triage.start.facts import Message, Start
from nccl_runbook.triage.start.symptoms import StepText, Symptom, matching, step_texts, symptoms

WITHOUT_REASON = "rules out the rest"


def recognised(start: Start) -> list[Symptom]:
    """Symptoms in what was brought, surest guide first: the user's own words, then the log's in the order of the table."""
    seen = [m for m in start.messages if m.kind == "symptom"]
    own = {m.id for m in seen if m.line == 0}
    ids = {m.id for m in seen}
    ordered = list(symptoms().values())
    return [s for s in ordered if s.id in own] + [s for s in ordered if s.id in ids - own]


def decides(message: Message) -> tuple[str, ...]:
    """The steps that decide what a line points to, first the cheapest; () where no single step does."""
    if message.kind == "symptom":
        return symptoms()[message.id].steps
    return tuple(dict.fromkeys(step for symptom in matching(message.text) for step in symptom.steps))


def plan(start: Start) -> list[tuple[StepText, str]]:
    """Every step once with the reason that it is in the plan: first those that decide, then those that rule the rest out."""
    reasons: dict[str, str] = {}
    for symptom in recognised(start):
        for step in symptom.steps:
            reasons.setdefault(step, f"decides: {symptom.words}")
    names = [*reasons, *(name for name in step_texts() if name not in reasons)]
    return [(step_texts()[name], reasons.get(name, WITHOUT_REASON)) for name in names]
