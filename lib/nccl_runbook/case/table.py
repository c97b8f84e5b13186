"""The answer for a terminal: one sentence, its proof, the fix, what weaker causes there are, and what comes next."""

from collections.abc import Iterable

from nccl_runbook.case.judge import Test
from nccl_runbook.causes.causes import causes
from nccl_runbook.core.facts import counted
from nccl_runbook.core.findings import Finding, Severity
from nccl_runbook.report.verdict import VerdictDocument

SHOWN, TEXT_CHARACTERS = 4, 240  # of a finding's evidence; of one piece of it


def text(document: VerdictDocument, lead: Finding | None, fits: Iterable[str], test: Test | None) -> str:
    """The answer, strongest first; anything weaker is one line."""
    lines = [document.sentence, ""]
    behind = [c for c in document.causes if c.status != "ruled-out" and not (lead and c.id == lead.cause) and c.id != "benign"]
    first = lead or (behind[0] if len(behind) == 1 else None)
    if first:
        seen = [e for e in first.evidence if not e.text.startswith("decides: ") and (lead or e.text not in document.sentence)]
        lines += [f"   seen: {_cut(e.text)}" + f"  ({e.source})" * bool(e.source) for e in seen[:SHOWN]]
        lines += [f"   against: {_cut(e.text)}" for e in first.against[:SHOWN]]
        fix = [r for r in first.remedy if not (test and test.line in r.lines)]
        lines += [line for r in fix for line in (f"   {r.who}: {r.text}", *(f"       {x}" for x in r.lines))]
        lines.append("")
    lines += [f"{'also ' * bool(lead)}{c.status}: {causes()[c.id].title} [{c.id}]" for c in behind[:SHOWN]]
    lines += [f"and {counted(len(behind) - SHOWN, 'weaker cause')}: --html FILE"] * (len(behind) > SHOWN)
    lines += [f"other causes of this symptom, without evidence here: {', '.join(fits)}"] * bool(fits)
    lines += [f"ruled out: {c.title} [{c.id}]" for c in document.causes if c.status == "ruled-out"]
    lines += [f"{s.notebook}: {f.title}" for s in document.steps for f in _beside(s.findings, lead)][:SHOWN]
    lines += [f"next: {test.line}", f"      {test.why}" + f" (about {test.about_s} s)" * bool(test.about_s)] if test else []
    return "\n".join([*lines, f"verdict: {document.verdict} (exit code {document.exit_code})"])


def _beside(findings: Iterable[Finding], lead: Finding | None) -> list[Finding]:
    """What is wrong and has no cause of its own, and what could not be read."""
    return [f for f in findings if f.cause is None and f != lead and f.severity in (Severity.BROKEN, Severity.WARN, Severity.UNKNOWN)
            and not f.id.startswith("no-cause") and f.id != "log-undecided"]


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS else text[:TEXT_CHARACTERS] + " ..."
