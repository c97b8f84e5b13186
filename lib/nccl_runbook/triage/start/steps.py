"""What people see when a multi-GPU job fails; the steps that decide it, in their order, and why each is in the plan."""

import dataclasses
import functools
import re
from collections.abc import Iterable

from nccl_runbook.causes.toml import table
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.facts import CONTEXT, Logs
from nccl_runbook.triage.facts import Start

WITHOUT_REASON = "rules out the rest"


@dataclasses.dataclass(frozen=True)
class Symptom:
    """One row of symptoms.toml. ``words``: how the cockpit offers it; ``error``: a message verbatim, "" where there is none;
    ``signatures``: one expression for all; ``steps``: notebooks in the order that decides it; ``says``: the usual cause and the first
    move."""

    id: str
    words: str
    error: str
    signatures: re.Pattern[str]
    steps: tuple[str, ...]
    says: str
    source: str


@dataclasses.dataclass(frozen=True)
class StepText:
    """``answers``: the question of a step; ``about_s``: seconds that it takes on four GPUs, roughly."""

    name: str
    answers: str
    about_s: int


@functools.cache
def symptoms() -> dict[str, Symptom]:
    """Every symptom by id, in the order of the table."""
    return {row["id"]: Symptom(**{**row, "signatures": re.compile("|".join(f"(?:{p})" for p in row["signatures"]))})
            for row in table("triage/start/symptoms")["symptom"]}


@functools.cache
def step_texts() -> dict[str, StepText]:
    """What each step answers, by name, in the order in which a run takes them."""
    return {row["name"]: StepText(**row) for row in table("triage/start/symptoms")["step"]}


def matching(line: str) -> list[Symptom]:
    """The symptoms whose message is in ``line``; what a line names by id or in the words of the table counts as well."""
    bare = line.strip().casefold()
    return [s for s in symptoms().values() if bare in (s.id, s.words.casefold()) or s.signatures.search(line)]


def recognised(start: Start) -> list[tuple[Symptom, LogLine]]:
    """Symptoms in what was given with their first line: the user's own words, then the log's in the order of the table."""
    own = _first_lines(LogLine(CONTEXT, number, text) for number, text in enumerate(start.symptom.splitlines(), 1))
    first = {**_first_lines(_kept(start.logs) if start.logs else []), **own}
    return [(symptoms()[name], first[name]) for name in sorted(first, key=lambda n: (n not in own, list(symptoms()).index(n)))]


def _kept(logs: Logs) -> list[LogLine]:
    """The lines of the log that say something."""
    known = [line for seen in logs.seen.values() for line in seen.lines]
    ranks = [t.at for r in logs.ranks for t in r.timeouts] + [r.first_error for r in logs.ranks]
    return [line for line in (*known, *ranks, logs.failed, logs.timeout, *(u.first for u in logs.unknown)) if line]


def _first_lines(lines: Iterable[LogLine]) -> dict[str, LogLine]:
    return {symptom.id: line for line in reversed([*lines]) for symptom in matching(line.text)}


def deciding(lines: Iterable[str]) -> list[str]:
    """The steps that decide what lines point to, first the cheapest; [] if no single step does."""
    return list(dict.fromkeys(step for line in lines for symptom in matching(line) for step in symptom.steps))


def plan(start: Start) -> list[tuple[StepText, str]]:
    """Every step once with the reason that it is in the plan: first those that decide, then those that rule the rest out."""
    decides = [(step, f"decides: {symptom.words}") for symptom, _ in recognised(start) for step in symptom.steps]
    reasons = {**dict.fromkeys(step_texts(), WITHOUT_REASON), **dict(reversed(decides))}
    return [(step_texts()[name], reasons[name]) for name in dict.fromkeys([*(step for step, _ in decides), *step_texts()])]
