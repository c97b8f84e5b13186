"""Tables that look the same in Lab, in a page and in a terminal.

Only what an untrusted JupyterLab keeps is used: plain tables with caption and scope, and inline style (Lab 4.6 strips <style>, <svg>,
role and aria-*).
"""
import base64
import dataclasses
import functools
import html
from collections.abc import Callable
from typing import Any

from nccl_runbook.core.facts import Gap
from nccl_runbook.report.curve import Curve
from nccl_runbook.report.markup import TONES, grid, table_html

_IN_LAB = "text-align:left;vertical-align:top"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One table cell: ``text`` and a ``tone`` of TONES; ``heat`` from 0 to 1 shades it instead (0 worst)."""

    text: str
    tone: str = ""
    heat: float | None = None

    def __post_init__(self) -> None:
        if self.tone not in TONES:
            raise ValueError(f"unknown tone {self.tone!r}; one of {', '.join(TONES)}")

    @property
    def background(self) -> str:
        return TONES[self.tone] if self.heat is None else f"hsla({int(120 * max(0.0, min(1.0, self.heat)))},70%,45%,.3)"


@dataclasses.dataclass(frozen=True)
class Table:
    """``caption``, column headings, and rows of text or Cell, kept as Cell; the first column heads its row.

    ``note`` stands below it, and ``curve``, which shows the same figures, above."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""
    curve: Curve | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", [[c if isinstance(c, Cell) else Cell(str(c)) for c in row] for row in self.rows])

    def painted(self, rows: int | None = None, columns: int | None = None) -> list[list[tuple[str, str]]]:
        """The first so many rows and columns as (text, background)."""
        return [[(c.text, c.background) for c in row[:columns]] for row in self.rows[:rows]]

    @property
    def picture(self) -> str:
        """The curve as SVG; "" without one."""
        return self.curve.svg() if self.curve else ""

    def _repr_html_(self) -> str:
        table = table_html(self.caption, self.columns, self.painted(), style=_IN_LAB)
        note = f'<p style="opacity:.8">{html.escape(self.note)}</p>' if self.note else ""
        return f"{self._image()}{table}{note}"

    def _image(self) -> str:
        """As an image, because an untrusted Lab strips <svg>."""
        data = base64.b64encode(self.picture.encode()).decode()
        return f'<img alt="{html.escape(self.caption)}, as a curve" src="data:image/svg+xml;base64,{data}">' if data else ""

    def __repr__(self) -> str:
        lines = grid([self.columns, *([c.text for c in row] for row in self.rows)])
        return "\n".join([self.caption, *lines, *([self.note] if self.note else [])])


def titled(caption: str, *inside: str) -> Callable[[Callable[..., Table]], Callable[..., Table]]:
    """For a function that makes a table of a fact: ``caption`` goes before its own. A Gap in place of the fact, or of what is ``inside``
    it (``nvml``, then ``pairs`` of that), stands in a table of that caption, with its reason."""
    def of(make: Callable[..., Table]) -> Callable[..., Table]:
        @functools.wraps(make)
        def table(fact: Any, *more: Any, **options: Any) -> Table:
            seen = fact
            for name in inside:
                seen = seen if isinstance(seen, Gap) else getattr(seen, name, seen)
            if isinstance(seen, Gap):
                return Table(caption, ["not looked at", "why"], [[Cell(seen.reason, "muted"), seen.detail]])
            made = make(fact, *more, **options)
            return dataclasses.replace(made, caption=caption + made.caption)
        return table
    return of
