"""Tables of the start: what was recognised in what the user brought, and the plan of steps."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_runbook.causes.causes import causes
from nccl_runbook.core.facts import Gap
from nccl_runbook.report.cells import Line
from nccl_runbook.report.tables import Cell, Table
from nccl_runbook.triage.start.facts import Message, Start
from nccl_runbook.triage.start.symptoms import StepText, symptoms


def brought_table(start: Start) -> Table | Line:
    """Every message that was recognised, with its line; where there is none, only how the log was read."""
    if not start.messages:
        return Line(f"Nothing was recognised. {_note(start)}")
    rows = [[f"{-m.line} from the end" if m.line < 0 else str(m.line or "your words"), _meaning(m), "" if m.text in symptoms() else m.text,
             str(m.times)] for m in start.messages]
    columns = ["line", "points to", "message", "times"]
    return Table("Recognised in what you brought", columns, rows, _note(start))


def _meaning(message: Message) -> str:
    return f"cause: {causes()[message.id].title}" if message.kind == "cause" else f"symptom: {symptoms()[message.id].words}"


def _note(start: Start) -> str:
    if start.log is None:
        return "No log was named."
    if isinstance(start.log, Gap):
        return f"The log was not read: {start.log.detail}."
    left = f"; {start.log.left_out}" if start.log.left_out else ""
    return f"Lines of the log that were looked at: {start.log.lines}{left}. A message is a hypothesis, not a proof."


def plan_table(plan: Iterable[tuple[StepText, str]]) -> Table:
    """``plan``: (step, why it is in the plan), in the order that decides."""
    rows = [[step.name, step.answers, f"{step.about_s} s", Cell(why, "note" if why.startswith("decides") else "")] for step, why in plan]
    note = "A run takes its steps in the order of their numbers and ends with 99-verdict. The seconds are about right for four GPUs."
    return Table("Plan of steps, the deciding ones first", ["step", "what it answers", "about", "why it is in the plan"], rows, note)
