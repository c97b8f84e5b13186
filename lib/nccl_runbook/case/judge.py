"""The one sentence, what is left to separate after reading, and the cheapest test that does it."""

import dataclasses
import math
from collections.abc import Collection, Sequence

from nccl_runbook.causes.causes import causes, for_launcher
from nccl_runbook.core.findings import Finding, Severity
from nccl_runbook.report.verdict import VerdictDocument
from nccl_runbook.triage.start.steps import StepText, step_texts

DUMPS, LOGS = "06-timeouts", "07-logs"
# torch 2.2 to 2.15 read these names, 2.9 and later beside TORCH_FR_BUFFER_SIZE and TORCH_FR_DUMP_TEMP_FILE (variables.toml)
RECORDER = ("export TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DEBUG_INFO_TEMP_FILE=DIR/nccl_trace_rank_ "
            "NCCL_DEBUG=INFO")


@dataclasses.dataclass(frozen=True)
class Test:
    """What to do next. ``separates``: the causes that its outcome separates; ``about_s``: seconds on four GPUs, 0 for what only reads."""

    line: str
    why: str
    separates: tuple[str, ...] = ()
    about_s: int = 0


def sentence(document: VerdictDocument, lead: Finding | None) -> str:
    """Who, what, where, and how sure."""
    if lead:
        printed = [s.notebook for s in document.steps if s.notebook == LOGS and lead in s.findings and lead.cause]
        status = next((c.status for c in document.causes if c.id == lead.cause), "")
        said = (f"{status.capitalize()}: {lead.title.rstrip('.')}" if lead.severity is Severity.WARN and status in ("likely", "possible")
                else document.sentence.rstrip("."))
        return said + (f": {lead.evidence[0].source}." if printed else ".")
    sound = [s.reason.rstrip(".") for s in document.steps if s.status == "ok"]
    if document.verdict == "healthy":
        return f"Healthy: {'; '.join(sound) or 'nothing that was named is wrong'}."
    unknown = [s.reason.rstrip(".") for s in document.steps if s.status in ("unknown", "skipped")]
    return f"Unknown: {'; '.join([*sound, *unknown[:1]])}."


def left(document: VerdictDocument, lead: Finding | None, fits: Sequence[str]) -> list[str]:
    """The causes between which the proof does not decide yet, surest first; none where one is established, or dumps name the rank."""
    known = {c.id: c for c in document.causes if c.status != "ruled-out" and c.id != "benign"}
    if any(c.status == "established" for c in known.values()) or lead and lead.id == "hang-told":
        return []
    return [c for c in known if known[c].status == "likely"] or [*known] or [*fits]


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


def next_test(document: VerdictDocument, lead: Finding | None, fits: Sequence[str], steps: Sequence[str],
              launcher: str = "") -> Test | None:
    """What comes next: what the dumps still ask for; else the cheapest step that separates what is left; else what decides the leading
    cause. ``fits``: causes that only fit the symptom; ``steps``: those that decide it; ``launcher``: that of the job."""
    for asked in (e.text for s in document.steps for f in s.findings for e in f.evidence if f.id == "hang-told" and e.source == "next"):
        return Test(asked.removeprefix("decides: "), "collect the evidence that is still missing")
    open_causes, done = left(document, lead, fits), {s.notebook for s in document.steps}
    if test := cheapest(open_causes, done):
        return test
    if open_causes:
        probe, why, line = causes()[open_causes[0]].decides
        if probe == "hang" and DUMPS not in done:
            lines = "\n".join(["nccl-runbook look   # on the job's host, while it still hangs", *for_launcher(RECORDER, launcher), line])
            return Test(lines,
                        "No dump is here that names the rank. A look at the running job does; or start it again with these settings, "
                        "DIR on a disk that stays, and read what it leaves.", (open_causes[0],))
        return Test(line, why, (open_causes[0],), step_texts()[probe].about_s if probe in step_texts() else 0) if line else None
    ahead = [step_texts()[name] for name in steps if name not in done and document.verdict == "unknown"]
    return Test(f"nccl-runbook run --step {ahead[0].name}", ahead[0].answers, (), ahead[0].about_s) if ahead else None
