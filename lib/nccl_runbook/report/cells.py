"""What a step shows at its end, in Lab and in a terminal, and the tables of the sum.

Inline style only: an untrusted Lab strips everything else (see tables.py).
"""
import collections
import dataclasses
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path

from nccl_runbook.core.facts import grouped
from nccl_runbook.core.findings import Evidence, Finding, Remedy
from nccl_runbook.core.records import Command, Record
from nccl_runbook.report.markup import TONES, badge, remedy_html
from nccl_runbook.report.tables import Cell, Table
from nccl_runbook.report.verdict import VerdictDocument, fixes

_PRE = "margin:4px 0 8px;padding:8px 10px;background:rgba(128,128,128,.14);white-space:pre-wrap;overflow-wrap:anywhere"
_QUOTED = re.compile(r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'""", re.DOTALL)  # as a shell reads it: each once, from the left


def banner(status: str, line: str) -> str:
    """A line with the badge of ``status`` in front of it, in place of that word."""
    look = badge(status)
    chip = f'<strong style="padding:2px 8px;background:{TONES[look.tone]}">{look.symbol} {escape(look.word)}</strong>'
    return f'<p style="margin:4px 0 10px;font-size:115%">{chip} {escape(line.removeprefix(f"{look.word.capitalize()}: "))}</p>'


def _evidence(items: Iterable[Evidence], label: str) -> str:
    lines = [f"<li>{escape(e.text)}" + f' <span style="opacity:.75">({escape(e.source)})</span>' * bool(e.source) + "</li>" for e in items]
    return f'<p style="margin:4px 0 0;opacity:.8">{label}</p><ul style="margin:0 0 4px">{"".join(lines)}</ul>' if lines else ""


def _remedies(remedies: Iterable[Remedy]) -> str:
    return "".join(remedy_html(r, style=_PRE) for r in remedies)


def finding_html(finding: Finding) -> str:
    """One finding with its evidence and what to change."""
    status = f" <em>({escape(badge(finding.status).word)})</em>" if finding.cause and finding.status else ""
    look = badge(finding.severity.value)
    head = f'<p style="margin:0"><strong>{look.symbol} {escape(look.word)}:</strong> {escape(finding.title)}{status}</p>'
    body = _evidence(finding.evidence, "Seen") + _evidence(finding.against, "Against it") + _remedies(finding.remedy)
    edge = TONES[look.tone].rsplit(",", 1)[0] + ",.85)"  # the tone, nearly opaque
    return f'<div style="margin:0 0 10px;padding:6px 12px;border-left:4px solid {edge};background:rgba(128,128,128,.08)">{head}{body}</div>'


def _fold(summary: str, inner: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>" if inner else ""


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
        record = self.record
        missing = "".join(f"<li>{escape(line)}</li>" for line in record.not_looked_at)
        lines = ((escape(c.label), escape(c.line)) for c in record.commands)
        by_hand = "".join(f'<p style="margin:6px 0 0">{label}</p><pre style="{_PRE}">{line}</pre>' for label, line in lines)
        parts = [banner(record.status, record.reason), *map(finding_html, record.findings),
                 _fold(f"Not looked at ({len(record.not_looked_at)})", missing and f"<ul>{missing}</ul>"),
                 _fold(f"Repeat by hand, in the runbook's folder ({len(record.commands)})", by_hand)]
        where = f'<p style="opacity:.75">record: {escape(short_path(self.path))}</p>' if self.path else ""
        return "<div>" + "".join(parts) + where + "</div>"

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


@dataclasses.dataclass(repr=False)
class Line:
    """A sentence for the reader, without the quotes of a string."""

    text: str

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.text)}</p>"

    def __repr__(self) -> str:
        return self.text


@dataclasses.dataclass(repr=False)
class VerdictView:
    """The verdict in one sentence, what was judged, and the fix: the top of 99-verdict."""

    document: VerdictDocument

    def _repr_html_(self) -> str:
        document = self.document
        head = banner("running" if document.running else document.verdict, document.sentence)
        fix = [f'<h4 style="margin:10px 0 4px">{escape(t)}</h4>' + _remedies(remedies) for t, remedies in fixes(document)]
        judged = f'<p style="margin:4px 0">judged: {escape(judged_line(document))}</p>'
        return f"<div>{head}{judged}{''.join(fix)}</div>"

    def __repr__(self) -> str:
        document = self.document
        lines = [document.sentence, f"judged: {judged_line(document)}", f"exit code: {document.exit_code}"]
        for title, remedies in fixes(document):
            lines += [title, *map(remedy_text, remedies)]
        return "\n".join(lines)


def judged_line(document: VerdictDocument) -> str:
    """`torch X, NCCL Y (path)`: whose software the verdict is about."""
    judged = document.judged
    nccl = f"NCCL {judged.nccl}" if judged.nccl else "NCCL not seen"
    line = f"torch {judged.torch}, {nccl}" + (f" ({judged.nccl_path})" if judged.nccl_path else "") if judged.torch else "no torch was run"
    return line + (" - the runbook's own torch, not yours" if judged.own else "")


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
