"""Tables of the sum: causes, steps, and what was not looked at."""
from collections.abc import Iterable

from nccl_runbook.core.facts import grouped
from nccl_runbook.core.findings import Evidence
from nccl_runbook.report.badges import badge
from nccl_runbook.report.tables import Cell, Table
from nccl_runbook.report.verdict import VerdictDocument


def _badged(status: str) -> Cell:
    look = badge(status)
    return Cell(f"{look.symbol} {look.word}", look.tone)


def _joined(evidence: Iterable[Evidence]) -> str:
    return "; ".join(e.text for e in evidence)


def causes_table(document: VerdictDocument) -> Table:
    """Every cause that was considered, surest first."""
    rows = [[c.title, _badged(c.status), _joined(c.evidence), _joined(c.against), c.id] for c in document.causes]
    columns = ["cause", "how sure", "evidence", "against", "id"]
    return Table("Causes", columns, rows) if rows else Table("Causes", ["cause"], [["No step named a cause."]])


def steps_table(document: VerdictDocument) -> Table:
    """Every step with its status and one line why."""
    rows = [[s.notebook, _badged(s.status), s.reason, f"{s.wall_s:.1f}" if s.wall_s else ""] for s in document.steps]
    return Table("Steps", ["step", "status", "why", "seconds"], rows, "" if rows else "No step has left a record.")


def not_looked_at_table(document: VerdictDocument) -> Table:
    """What could not be seen and decides nothing; a Gap that decides makes its step unknown instead.

    What is missing for the same reason shares a row; verdict.json lists each.
    """
    parts = ((*line.split(": ", 2), "", "")[:3] for line in document.not_looked_at)
    groups = grouped((why or what, (step, what if why else "")) for step, what, why in parts)
    rows = [[", ".join(dict.fromkeys(s for s, _ in of)), why, of[0][1] + f" and {n - 1} more" * (n > 1)]
            for why, of in groups.items() if (n := len({w for _, w in of}))]
    return Table("Not looked at", ["step", "why", "in the record"], rows, "" if rows else "Everything that was asked for was seen.")
