"""Tables of the start: what was recognised in what the user gave, and the plan of steps."""

from collections.abc import Iterable

from nccl_runbook.causes.causes import causes
from nccl_runbook.core.findings import Finding
from nccl_runbook.report.cells import Line
from nccl_runbook.report.tables import Cell, Table
from nccl_runbook.triage.facts import Start
from nccl_runbook.triage.judge import where
from nccl_runbook.triage.start.steps import StepText, plan, recognised


def brought_table(start: Start, findings: Iterable[Finding]) -> Table | Line:
    """Every cause and symptom that was recognised, with its first line; if there is none, only how the log was read."""
    rows = [[f"cause: {causes()[f.cause].title}", f.evidence[0].source, f.evidence[0].text] for f in findings if f.cause]
    rows += [[f"symptom: {s.words}", where(line), "" if line.text in (s.id, s.words) else line.text] for s, line in recognised(start)]
    if not rows:
        return Line(f"Nothing was recognised. {_note(start)}")
    return Table("Recognised in your log and symptom", ["points to", "where", "message"], rows, _note(start))


def _note(start: Start) -> str:
    if start.logs is None or not start.log_path:
        return "No log was given."
    unread = [f"{file.name} {file.problem or file.left_out}" for file in start.logs.files if file.problem or file.left_out]
    lines = sum(file.lines for file in start.logs.files)
    return f"Lines of the log that were read: {'; '.join([str(lines), *unread[:3]])}. A message is a hypothesis, not a proof."


def tables(start: Start, findings: Iterable[Finding]) -> list[Table]:
    """What was recognised, if anything was, and the plan."""
    return [t for t in (brought_table(start, findings), plan_table(plan(start))) if isinstance(t, Table)]


def plan_table(planned: Iterable[tuple[StepText, str]]) -> Table:
    """``planned``: (step, why it is planned), in the order that decides."""
    rows = [[step.name, step.answers, f"{step.about_s} s", Cell(why, "note" if why.startswith("decides") else "")] for step, why in planned]
    return Table("Plan of steps, the deciding ones first", ["step", "what it answers", "about", "why it is planned"], rows,
                 "A run reads first, and ends once a cause is established. The seconds are estimates for four GPUs.")
