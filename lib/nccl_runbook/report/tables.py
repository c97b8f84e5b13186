"""Tables that look the same in Lab, in a page and in a terminal."""
import base64
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

from nccl_runbook.core.facts import Gap
from nccl_runbook.report.curve import Bars, Curve, Lanes
from nccl_runbook.report.markup import TONES, grid
from nccl_runbook.report.render import macros


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

    ``note`` stands below it, and ``curve``, a picture of the same figures, above. ``drawn``: by which macro of pictures.svg.j2 the table
    itself is drawn, without a curve."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""
    curve: Curve | Lanes | Bars | None = None
    drawn: Literal["", "grid", "spread", "strip"] = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", [[c if isinstance(c, Cell) else Cell(str(c)) for c in row] for row in self.rows])

    @property
    def filled(self) -> list[int]:
        """The columns that say something, the first one always."""
        return [0, *(at for at in range(1, len(self.columns)) if not self.rows or any(row[at].text for row in self.rows if at < len(row)))]

    @property
    def picture(self) -> str:
        """It as SVG; "" without one."""
        if self.drawn:
            return str(getattr(macros("pictures.svg.j2"), self.drawn)(self)).strip()
        return self.curve.svg() if self.curve else ""

    def _repr_html_(self) -> str:
        picture = base64.b64encode(self.picture.encode()).decode()  # as an image, because an untrusted Lab strips <svg>
        return str(macros("cells.html.j2").table(self, picture))

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
