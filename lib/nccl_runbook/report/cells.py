"""What a step shows at its end, in Lab and in a terminal, and the tables of the sum."""
import collections
import dataclasses
import re
from pathlib import Path

from nccl_runbook.core.facts import grouped
from nccl_runbook.core.findings import Finding, Remedy
from nccl_runbook.core.records import Command, Record
from nccl_runbook.report.markup import badge
from nccl_runbook.report.tables import Cell, Table, macros
from nccl_runbook.report.verdict import VerdictDocument

_QUOTED = re.compile(r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'""", re.DOTALL)  # as a shell reads it: each once, from the left


def short_path(path: Path) -> str:
    """The end of a path: enough to find it, without the reader's home folder in a notebook that may be shared."""
    return "/".join(path.parts[-3:])


def finding_text(finding: Finding) -> str:
    """One finding for a terminal."""
    look = badge(finding.severity.value)
    status = f" ({badge(finding.status).word})" if finding.cause and finding.status else ""
    told = [("seen", e) for e in finding.evidence] + [("against", e) for e in finding.against]
    lines = [f"    {what}: {e.text}" + (f" [{e.source}]" if e.source else "") for what, e in told]
    return "\n".join([f"{look.symbol} {look.word}: {finding.title}{status}", *lines, *map(remedy_text, finding.remedy)])


def remedy_text(remedy: Remedy) -> str:
    return "\n".join([f"    {remedy.who}: {remedy.text}", *(f"        {line}" for line in remedy.lines)])


@dataclasses.dataclass(repr=False)
class StepView:
    """The end of a step: ``.record`` to go on with, ``.findings`` worst first; ``path``: where the record lies."""

    record: Record
    path: Path | None = None

    @property
    def findings(self) -> list[Finding]:
        return self.record.findings

    def _repr_html_(self) -> str:
        return str(macros("cells.html.j2").step(self.record, short_path(self.path) if self.path else ""))

    def __repr__(self) -> str:
        record, look = self.record, badge(self.record.status)
        lines = [f"{look.symbol} {record.step}: {look.word} - {record.reason}", *map(finding_text, record.findings)]
        lines += [f"not looked at: {line}" for line in record.not_looked_at]
        lines += _by_hand(record.commands)
        return "\n".join(lines + ([f"record: {short_path(self.path)}"] if self.path else []))


def _by_hand(commands: list[Command]) -> list[str]:
    """Lines to paste; a long value that several of them carry, such as a model's shapes, is set once."""
    found = collections.Counter(v for c in commands for v in _QUOTED.findall(c.line) if v[0] == "'" and len(v) > 300)
    value = next((v for v, count in found.most_common(1) if count > 1), "")
    return [f"repeat by hand, first: LONG={value}"] * bool(value) + [f"repeat by hand, in the runbook's folder ({c.label}): " + _QUOTED.sub(
        lambda m: '"$LONG"' if m[0] == value else m[0], c.line) for c in commands]


class Line(str):
    """A sentence for the reader, without the quotes of a string."""

    __repr__ = str.__str__

    def _repr_html_(self) -> str:
        return str(macros("cells.html.j2").line(str(self)))


def _badged(status: str) -> Cell:
    look = badge(status)
    return Cell(f"{look.symbol} {look.word}", look.tone)


def steps_table(document: VerdictDocument) -> Table:
    """Every step with its status and one line why."""
    rows = [[s.notebook, _badged(s.status), s.reason, f"{s.wall_s:.1f}" if s.wall_s else ""] for s in document.steps]
    return Table("Steps", ["step", "status", "why", "seconds"], rows, "" if rows else "No step left a record.")


def not_looked_at_table(document: VerdictDocument) -> Table:
    """What could not be seen and decides nothing; a Gap that decides makes its step unknown instead.

    What is missing for the same reason shares a row; verdict.json lists each.
    """
    parts = ((*line.split(": ", 2), "", "")[:3] for line in document.not_looked_at)
    groups = grouped((why or what, (step, what if why else "")) for step, what, why in parts)
    rows = [[", ".join(dict.fromkeys(s for s, _ in of)), why, of[0][1] + f" and {n - 1} more" * (n > 1)]
            for why, of in groups.items() if (n := len({w for _, w in of}))]
    return Table("Not looked at", ["step", "why", "in the record"], rows, "" if rows else "Everything requested was seen.")
