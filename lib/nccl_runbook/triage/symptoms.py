"""What people see when a multi-GPU job fails, and the steps that decide it, in their order."""

import dataclasses
import functools
import re
from collections.abc import Iterable

from nccl_runbook.causes.tables import table


@dataclasses.dataclass(frozen=True)
class Symptom:
    """One row of symptoms.toml. ``words``: as the form shows it; ``error``: verbatim message, or empty;
    ``signatures``: one expression for all; ``steps``: notebooks in the order that decides it; ``says``:
    usual cause and first action."""

    id: str
    words: str
    error: str
    signatures: re.Pattern[str]
    steps: tuple[str, ...]
    says: str
    source: str


@dataclasses.dataclass(frozen=True)
class StepText:
    """``answers``: the question of a step; ``about_s``, ``cpu_s``: approximate seconds on four GPUs, and
    without a GPU; ``gpus``: how many of the four it uses; ``costs``: that, and whom it disturbs, in words."""

    name: str
    answers: str
    about_s: int
    cpu_s: int
    gpus: int
    costs: str

    def seconds(self, gpus: int) -> int:
        """Approximate seconds on so many GPUs; with none, ranks rehearse on the CPU."""
        return round(self.cpu_s + (self.about_s - self.cpu_s) * gpus / 4)


@functools.cache
def symptoms() -> dict[str, Symptom]:
    """Id -> symptom, in the order of the table."""
    return {
        row["id"]: Symptom(
            **{**row, "signatures": re.compile("|".join(f"(?:{p})" for p in row["signatures"]))}
        )
        for row in table("triage/symptoms")["symptom"]
    }


@functools.cache
def step_texts() -> dict[str, StepText]:
    """Step -> what it answers, in running order."""
    return {row["name"]: StepText(**row) for row in table("triage/symptoms")["step"]}


def matching(line: str) -> list[Symptom]:
    """Symptoms whose message is in ``line``, or that it names by id or in the table's words."""
    bare = line.strip().casefold()
    return [s for s in symptoms().values() if bare in (s.id, s.words.casefold()) or s.signatures.search(line)]


def deciding(lines: Iterable[str]) -> list[str]:
    """Steps that decide between these causes, cheapest first; empty if no single step does."""
    return list(dict.fromkeys(step for line in lines for symptom in matching(line) for step in symptom.steps))
