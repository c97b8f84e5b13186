"""What is left to separate after reading, and the cheapest test that does it."""

import dataclasses
import math
from collections.abc import Collection, Sequence

from nccl_runbook.causes.causes import causes
from nccl_runbook.core.findings import Finding
from nccl_runbook.report.verdict import VerdictDocument
from nccl_runbook.triage.start.steps import StepText, step_texts


@dataclasses.dataclass(frozen=True)
class Test:
    """What to do next. ``separates``: the causes that its outcome separates; ``about_s``: seconds on four GPUs, 0 for what only reads."""

    line: str
    why: str
    separates: tuple[str, ...] = ()
    about_s: int = 0


def left(document: VerdictDocument, lead: Finding | None, fits: Sequence[str]) -> list[str]:
    """The causes between which the proof does not decide yet, surest first; none where one is established, or dumps name the rank."""
    known = {c.id: c for c in document.causes if c.status != "ruled-out" and c.id != "benign"}
    if any(c.status == "established" for c in known.values()) or lead and lead.id == "hang-told":
        return []
    likely = [c for c in known if known[c].status == "likely"]
    return likely or [*known, *(c for c in fits if c not in known)]


def cheapest(open_causes: Sequence[str], done: Collection[str]) -> Test | None:
    """Of the steps that were not done the one that tells most for its seconds: each cause that a step decides is an outcome of its own,
    and the causes that it cannot see are one together. All causes that are left count alike, as nothing says how usual each is."""
    def bits_per_second(step: StepText) -> float:
        decided = sum(causes()[c].decides[0] == step.name for c in open_causes)
        shares = [1] * decided + [len(open_causes) - decided]
        return -sum(n / len(open_causes) * math.log2(n / len(open_causes)) for n in shares if n) / step.about_s

    able = [s for s in step_texts().values() if s.name not in done and any(causes()[c].decides[0] == s.name for c in open_causes)]
    if len(open_causes) < 2 or not able:
        return None
    best = max(able, key=bits_per_second)
    told = tuple(c for c in open_causes if causes()[c].decides[0] == best.name)
    return Test(f"nccl-runbook run --step {best.name}", best.answers, told, best.about_s)


def next_test(document: VerdictDocument, lead: Finding | None, fits: Sequence[str], steps: Sequence[str]) -> Test | None:
    """What comes next: what the dumps still ask for; else the cheapest step that separates what is left; else what decides the leading
    cause. ``fits``: causes that only fit the symptom; ``steps``: those that decide it."""
    for asked in (e.text for s in document.steps for f in s.findings for e in f.evidence if f.id == "hang-told" and e.source == "next"):
        return Test(asked.removeprefix("decides: "), "collects the evidence that is still missing")
    open_causes, done = left(document, lead, fits), {s.notebook for s in document.steps}
    if test := cheapest(open_causes, done):
        return test
    if open_causes:
        probe, why, line = causes()[open_causes[0]].decides
        return Test(line, why, (open_causes[0],), step_texts()[probe].about_s if probe in step_texts() else 0) if line else None
    ahead = [step_texts()[name] for name in steps if name not in done and document.verdict == "unknown"]
    return Test(f"nccl-runbook run --step {ahead[0].name}", ahead[0].answers, (), ahead[0].about_s) if ahead else None
