"""Tables that look the same in Lab, in a page and in a terminal.

Only what an untrusted JupyterLab keeps is used: plain tables with caption and scope, and inline style (Lab 4.6 strips <style>, <svg>,
role and aria-*). Colours are translucent, so that they read on light and dark; a word always says what the colour says.
"""
from __future__ import annotations

import base64
import dataclasses
import functools
import html
from collections.abc import Callable
from typing import Any

from nccl_runbook.core.facts import Gap
from nccl_runbook.report.curve import Curve

TONES = {"": "", "ok": "rgba(46,160,67,.18)", "note": "rgba(56,139,253,.18)", "warn": "rgba(210,153,34,.28)",
         "broken": "rgba(248,81,73,.28)", "unknown": "rgba(139,92,246,.22)", "muted": "rgba(128,128,128,.14)"}


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
        cells = [[c if isinstance(c, Cell) else Cell(str(c)) for c in row] for row in self.rows]
        object.__setattr__(self, "rows", cells)

    @property
    def picture(self) -> str:
        """The curve as SVG; "" without one."""
        return self.curve.svg() if self.curve else ""

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col" style="text-align:left">{html.escape(c)}</th>' for c in self.columns)
        body = "".join(f"<tr>{''.join(_cell_html(i, c) for i, c in enumerate(row))}</tr>" for row in self.rows)
        caption = f'<caption style="text-align:left;font-weight:600">{html.escape(self.caption)}</caption>'
        note = f'<p style="opacity:.8">{html.escape(self.note)}</p>' if self.note else ""
        return f"{self._image()}<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"

    def _image(self) -> str:
        """As an image, because an untrusted Lab strips <svg>."""
        data = base64.b64encode(self.picture.encode()).decode()
        return f'<img alt="{html.escape(self.caption)}, as a curve" src="data:image/svg+xml;base64,{data}">' if data else ""

    def __repr__(self) -> str:
        grid = [self.columns] + [[c.text for c in row] for row in self.rows]
        widths = [max(len(row[i]) if i < len(row) else 0 for row in grid) for i in range(len(self.columns))]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in grid]
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


def _cell_html(index: int, cell: Cell) -> str:
    tag = 'th scope="row"' if index == 0 else "td"
    style = "text-align:left;vertical-align:top" + (f";background:{cell.background}" if cell.background else "")
    return f'<{tag} style="{style}">{html.escape(cell.text)}</{tag[:2]}>'
