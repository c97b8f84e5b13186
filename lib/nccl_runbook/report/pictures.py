"""Pictures of a table's figures, drawn by a template."""

import dataclasses
import functools
import math
import os
from pathlib import Path
from typing import Any

from nccl_runbook.core.findings import WHO
from nccl_runbook.report.markup import TONES, badge

TEMPLATES = Path(__file__).parent / "templates"
FOLDER = "NCCL_RUNBOOK_FOLDER"  # what stands before `nccl-runbook` in lines to copy: `make lab` sets it


@functools.cache
def macros(name: str) -> Any:
    """The macros of a template, as functions that return markup."""
    return environment().get_template(name).module


@functools.cache  # it keeps the compiled templates: a run writes its page after each step
def environment() -> Any:
    """The jinja2 environment with our templates, where ``badge`` and ``tones`` give a status its look."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(badge=badge, tones=TONES, who=WHO, folder=os.environ.get(FOLDER, ""))
    return made


MOST_SERIES, MOST_POINTS, MOST_LANES = 12, 40, 24


@dataclasses.dataclass(frozen=True)
class Curve:
    """``series``: name -> [(x, y)], both positive, on logarithmic scales; ``x_label``, ``y_label``: with
    units; ``limits``: name -> a y that no value should exceed."""

    x_label: str
    y_label: str
    series: dict[str, list[tuple[float, float]]]
    limits: dict[str, float] = dataclasses.field(default_factory=dict)

    def svg(self) -> str:
        """The picture; empty if there is nothing to draw."""
        # what can be drawn, bounded
        clean = {
            n: [(x, y) for x, y in points[:MOST_POINTS] if 0 < x < 1e18 and 1e-9 < y < 1e12]
            for n, points in self.series.items()
        }
        points = dict([(name, points) for name, points in clean.items() if points][:MOST_SERIES])
        every = [p for line in points.values() for p in line]
        if len({x for x, _ in every}) < 2:
            return ""
        limits = {name: y for name, y in self.limits.items() if 1e-9 < y < 1e12}
        plot = Plot(sorted({x for x, _ in every}), [*(y for _, y in every), *limits.values()])
        return str(macros("pictures.svg.j2").curve(self, plot, points, limits, size_words))


@dataclasses.dataclass(frozen=True)
class Lanes:
    """When which event happened to whom. ``lanes``: name -> [(seconds after the first mark, tone, event)],
    most important first."""

    lanes: dict[str, list[tuple[float, str, str]]]

    def svg(self) -> str:
        """The picture; empty if no time passes between the marks."""
        clean = {
            name: [mark for mark in marks[:MOST_POINTS] if 0 <= mark[0] < 1e9]
            for name, marks in self.lanes.items()
        }
        shown = dict([(name, marks) for name, marks in clean.items() if marks][:MOST_LANES])
        return str(macros("pictures.svg.j2").lanes(shown, len(clean) - len(shown))) if shown else ""


@dataclasses.dataclass(frozen=True)
class Bars:
    """Parts that add up to totals. ``bars``: name -> [(part, value)], in ``unit``."""

    unit: str
    bars: dict[str, list[tuple[str, float]]]

    def svg(self) -> str:
        """The picture; empty if there is nothing to draw."""
        clean = {
            name: [part for part in parts[:MOST_POINTS] if 0 < part[1] < 1e12]
            for name, parts in self.bars.items()
        }
        shown = dict([(name, parts) for name, parts in clean.items() if parts][:MOST_LANES])
        return str(macros("pictures.svg.j2").bars(shown, self.unit)) if shown else ""


@dataclasses.dataclass
class Plot:
    """Maps values to positions. ``xs``, ``ys``: every value, positive; ``width``, ``height``: of the picture
    in pixels; ``left`` to ``bottom``: edges of the plot area."""

    xs: list[float]
    ys: list[float]
    width: int = 680
    height: int = 270
    left: int = 54
    right: int = 510
    top: int = 22
    bottom: int = 234

    def __post_init__(self) -> None:
        self.x0, self.x1 = math.log2(min(self.xs)), math.log2(max(self.xs))
        self.y0 = math.floor(math.log10(min(self.ys)))
        self.y1 = max(math.ceil(math.log10(max(self.ys))), self.y0 + 1)

    def x(self, value: float) -> float:
        """Horizontal position in pixels, on a scale of powers of two."""
        return round(
            self.left + (math.log2(value) - self.x0) / (self.x1 - self.x0) * (self.right - self.left), 1
        )

    def y(self, value: float) -> float:
        """Vertical position in pixels, on a scale of powers of ten."""
        return round(
            self.bottom - (math.log10(value) - self.y0) / (self.y1 - self.y0) * (self.bottom - self.top), 1
        )


def size_words(size_bytes: float) -> str:
    """A number of bytes in words: 4 B, 64 KiB, 16 MiB, 1 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:g} GiB"
