"""Tables that look the same in Lab, in a page and in a terminal, and the pictures of their figures.

Markup stands in templates/, escaped everywhere; jinja2 is loaded with the first page or cell. Pictures are
SVG without script, in colours that read on light and dark pages.
"""

import base64
import collections
import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from nccl_runbook.core.facts import Gap, Reason, grouped
from nccl_runbook.core.findings import WHO, Finding
from nccl_runbook.core.records import Command, Record
from nccl_runbook.report.markup import TONES, badge, grid
from nccl_runbook.report.pictures import Bars, Curve, Lanes, macros
from nccl_runbook.report.verdict_document import VerdictDocument

# --- pictures


# --- tables


@dataclasses.dataclass(frozen=True)
class Cell:
    """One table cell: ``text`` and a ``tone`` of TONES (else ValueError); ``heat`` from 0 (worst) to 1
    shades it instead."""

    text: str
    tone: Literal["", "ok", "note", "warn", "broken", "unknown", "muted"] = ""
    heat: float | None = None

    def __post_init__(self) -> None:
        if self.tone not in TONES:
            raise ValueError(f"unknown tone {self.tone!r}; one of {', '.join(TONES)}")

    @property
    def background(self) -> str:
        """CSS colour, by tone or by heat (0 red, 1 green)."""
        return (
            TONES[self.tone]
            if self.heat is None
            else f"hsla({int(120 * max(0.0, min(1.0, self.heat)))},70%,45%,.3)"
        )


@dataclasses.dataclass(frozen=True)
class Table:
    """``caption``, column headings, and rows of text or Cell (kept as Cell); the first column heads its row.

    ``note`` stands below, ``curve`` (the same figures as a picture) above. ``drawn``: macro of
    pictures.svg.j2 that draws the table itself, without a curve. Without rows it is one line; pages
    leave it out.
    """

    caption: str
    columns: list[str]
    rows: list[list[Cell | str]]
    note: str = ""
    curve: Curve | Lanes | Bars | None = None
    drawn: Literal["", "grid", "spread", "strip"] = ""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "rows", [[c if isinstance(c, Cell) else Cell(str(c)) for c in row] for row in self.rows]
        )

    @property
    def filled(self) -> list[int]:
        """Indices of columns with content, and always the first."""
        return [
            0,
            *(
                at
                for at in range(1, len(self.columns))
                if not self.rows or any(row[at].text for row in self.rows if at < len(row))
            ),
        ]

    @property
    def picture(self) -> str:
        """The picture as SVG; empty without one."""
        if self.drawn and self.rows:
            return str(getattr(macros("pictures.svg.j2"), self.drawn)(self)).strip()
        return self.curve.svg() if self.curve else ""

    def _repr_html_(self) -> str:
        # as an image, because an untrusted Lab strips <svg>
        return str(macros("cells.html.j2").table(self, base64.b64encode(self.picture.encode()).decode()))

    def __repr__(self) -> str:
        if not self.rows:
            return f"{self.caption}: none. {self.note}".strip()
        filled, texts = self.filled, [self.columns, *([c.text for c in row] for row in self.rows)]
        rows = [[row[at] for at in filled if at < len(row)] for row in texts]
        return "\n".join([self.caption, *grid(rows), *([self.note] if self.note else [])])


def titled(caption: str, *inside: str) -> Callable[[Callable[..., Table]], Callable[..., Table]]:
    """A decorator for functions that make a table of a fact: ``caption`` precedes the table's own. For a
    Gap, in the fact or at the path ``inside`` it (``nvml``, then ``pairs``), a table of that caption states
    its reason."""

    def of(make: Callable[..., Table]) -> Callable[..., Table]:
        @functools.wraps(make)
        def table(fact: Any, *more: Any, **options: Any) -> Table:
            part = fact
            for name in inside:
                part = part if isinstance(part, Gap) else getattr(part, name, part)
            if isinstance(part, Gap):
                return Table(caption, ["not looked at", "why"], [[Cell(part.reason, "muted"), part.detail]])
            made = make(fact, *more, **options)
            return dataclasses.replace(made, caption=caption + made.caption)

        return table

    return of


_QUOTED = re.compile(
    r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'""", re.DOTALL
)  # as a shell reads it: each once, from the left


def short_path(path: Path) -> str:
    """The end of a path: enough to find the file, without the reader's home folder."""
    return "/".join(path.parts[-3:])


def finding_text(finding: Finding) -> str:
    """One finding for a terminal."""
    look = badge(finding.severity.value)
    status = f" ({badge(finding.status).word})" if finding.cause and finding.status else ""
    lines = [
        f"    {what}: {e.text}" + (f" [{e.source}]" if e.source else "")
        for what, evidence in (("seen", finding.evidence), ("against", finding.against))
        for e in evidence
    ]
    fixes = [
        line
        for r in finding.remedy
        for line in (f"    {WHO[r.who]}: {r.text}", *(f"        {copied}" for copied in r.lines))
    ]
    return "\n".join(
        [
            f"{look.symbol} {look.word}: {finding.title.rstrip('.') if status else finding.title}{status}",
            *lines,
            *fixes,
        ]
    )


@dataclasses.dataclass(repr=False)
class StepView:
    """What a step ends with: ``.record``, ``.findings`` worst first; ``path``: where the record lies."""

    record: Record
    path: Path | None = None

    @property
    def findings(self) -> list[Finding]:
        """Findings of the step's record."""
        return self.record.findings

    def _repr_html_(self) -> str:
        return str(macros("cells.html.j2").step(self.record, short_path(self.path) if self.path else ""))

    def __repr__(self) -> str:
        record, look = self.record, badge(self.record.status)
        lines = [
            f"{look.symbol} {record.step}: {look.word} - {record.reason}",
            *map(finding_text, record.findings),
            *(f"not looked at: {line}" for line in record.not_looked_at),
            *_by_hand(record.commands),
        ]
        return "\n".join(lines + ([f"record: {short_path(self.path)}"] if self.path else []))


def _by_hand(commands: list[Command]) -> list[str]:
    """Lines to paste; a long value that several of them carry, such as a model's shapes, is set once."""
    long_values = collections.Counter(
        v for c in commands for v in _QUOTED.findall(c.line) if v[0] == "'" and len(v) > 300
    )
    value = next((v for v, count in long_values.most_common(1) if count > 1), "")
    return ([f"repeat by hand, first: LONG={value}"] if value else []) + [
        f"repeat by hand, in the runbook's folder ({c.label}): "
        + _QUOTED.sub(lambda m: '"$LONG"' if m[0] == value else m[0], c.line)
        for c in commands
    ]


class Line(str):
    """A sentence that a notebook shows without quotation marks."""

    __repr__ = str.__str__

    def _repr_html_(self) -> str:
        return str(macros("cells.html.j2").line(str(self)))


def _badged(status: str) -> Cell:
    look = badge(status)
    return Cell(f"{look.symbol} {look.word}", look.tone)


def steps_table(document: VerdictDocument) -> Table:
    """One row a step: status and reason."""
    rows = [
        [s.notebook, _badged(s.status), s.reason, f"{s.wall_s:.1f}" if s.wall_s else ""]
        for s in document.steps
    ]
    return Table(
        "Steps", ["step", "status", "why", "seconds"], rows, "" if rows else "No step wrote a record."
    )


_GAPS = {
    "not-run": "tests that were not run",
    "absent": "not there",
    "unsupported": "not possible on this machine",
}


def _unseen(line: str) -> tuple[str, tuple[str, str, str]]:
    """(key of its row; step, what, why). A reader knows no name for the field of a record."""
    step, what, why = (*line.split(": ", 2), "", "")[:3]
    kind, _, detail = why.partition(": ")
    if kind in get_args(Reason):
        return step + kind, (step, _GAPS.get(kind, kind.replace("-", " ")), detail or kind)
    return why or what, (step, what if why else "", why or what)


def not_looked_at_table(document: VerdictDocument) -> Table:
    """What could not be seen and decides nothing; a Gap that decides makes its step unknown. Gaps of one
    step with one reason share a row; verdict.json lists each with its field."""
    shown = slice(len(document.steps) == 1, None)  # the only step needs no name
    rows = [
        ["; ".join(dict.fromkeys(part)) for part in zip(*of, strict=True)][shown]
        for of in grouped(map(_unseen, document.not_looked_at)).values()
    ]
    return Table(
        "Not looked at",
        ["step", "what", "why"][shown],
        rows,
        "" if rows else "No requested evidence is missing.",
    )
