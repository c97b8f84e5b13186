"""A curve beside its table: a picture in SVG without script, in colours that read on light and dark pages."""

import dataclasses
import math

from nccl_runbook.report.render import macros

MOST_SERIES, MOST_POINTS = 12, 40


@dataclasses.dataclass(frozen=True)
class Curve:
    """``series``: by name [(x, y)], both positive and drawn on logarithmic scales; ``x_label``, ``y_label`` with units."""

    x_label: str
    y_label: str
    series: dict[str, list[tuple[float, float]]]

    def svg(self) -> str:
        """The picture; "" where there is nothing to draw."""
        # what can be drawn, bounded
        clean = {n: [(x, y) for x, y in points[:MOST_POINTS] if 0 < x < 1e18 and 1e-9 < y < 1e12] for n, points in self.series.items()}
        points = dict([(name, points) for name, points in clean.items() if points][:MOST_SERIES])
        every = [p for line in points.values() for p in line]
        if len({x for x, _ in every}) < 2:
            return ""
        plot = Plot([x for x, _ in every], [y for _, y in every])
        ends = sorted((plot.y(line[-1][1]), at, name) for at, (name, line) in enumerate(points.items()))
        return str(macros("pictures.svg.j2").curve(self, plot, points, ends, size_words))


class Plot:
    """From values to places: ``width`` and ``height`` of the picture, the others are edges of what lies within the axes."""

    width, height, left, right, top, bottom = 680, 270, 54, 510, 22, 234

    def __init__(self, xs: list[float], ys: list[float]) -> None:
        self.x0, self.x1 = math.log2(min(xs)), math.log2(max(xs))
        self.y0, self.y1 = math.floor(math.log10(min(ys))), max(math.ceil(math.log10(max(ys))), math.floor(math.log10(min(ys))) + 1)
        self.xs = sorted(set(xs))

    def x(self, value: float) -> float:
        return round(self.left + (math.log2(value) - self.x0) / (self.x1 - self.x0) * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        return round(self.bottom - (math.log10(value) - self.y0) / (self.y1 - self.y0) * (self.bottom - self.top), 1)

    @property
    def decades(self) -> list[float]:
        return [10.0**power for power in range(self.y0, self.y1 + 1)]


def size_words(size_bytes: float) -> str:
    """4 B, 64 KiB, 16 MiB, 1 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:g} GiB"
