"""What people see when a multi-GPU job fails, and the steps that decide it, in their order."""

import dataclasses
import functools
import re
from collections.abc import Iterable

from nccl_runbook.causes.tables import table


@dataclasses.dataclass(frozen=True)
class Symptom:
    """One row of symptoms.toml. ``words``: how the form offers it; ``error``: a message verbatim, "" where
    there is none; ``signatures``: one expression for all; ``steps``: notebooks in the order that decides it;
    ``says``: the usual cause and the first move."""

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
    return {
        row["id"]: Symptom(
            **{**row, "signatures": re.compile("|".join(f"(?:{p})" for p in row["signatures"]))}
        )
        for row in table("triage/symptoms")["symptom"]
    }


@functools.cache
def step_texts() -> dict[str, StepText]:
    """What each step answers, by name, in the order in which a run takes them."""
    return {row["name"]: StepText(**row) for row in table("triage/symptoms")["step"]}


def matching(line: str) -> list[Symptom]:
    """The symptoms whose message is in ``line``; what a line names by id or in the words
    of the table counts as well."""
    bare = line.strip().casefold()
    return [s for s in symptoms().values() if bare in (s.id, s.words.casefold()) or s.signatures.search(line)]


def deciding(lines: Iterable[str]) -> list[str]:
    """The steps that decide what lines point to, first the cheapest; [] if no single step does."""
    return list(dict.fromkeys(step for line in lines for symptom in matching(line) for step in symptom.steps))
