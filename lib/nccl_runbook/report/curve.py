"""A curve beside its table: a picture in SVG without script, in colours that read on light and dark pages."""

import dataclasses
import math
from collections.abc import Iterator
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 680, 270, 54, 170, 22, 36
MOST_SERIES, MOST_POINTS = 12, 40
COLOURS = ("#2f81f7", "#d29922", "#2ea043", "#f85149", "#a371f7", "#1b9aaa", "#db61a2", "#8b949e")
GREY = "#808890"


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
        plot = _Plot([x for x, _ in every], [y for _, y in every])
        label = f"{self.y_label} by {self.x_label}: {', '.join(points)}; the table beside it has the figures"
        parts = [*plot.grid(), *(_line(plot, i, line) for i, line in enumerate(points.values())), *_names(plot, points)]
        parts += [_text(LEFT, HEIGHT - 4, self.x_label, "start"), _text(4, 10, self.y_label, "start")]
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
                f'aria-label="{escape(label)}" font-family="system-ui,sans-serif" font-size="11">{"".join(parts)}</svg>')


class _Plot:
    """From values to places."""

    def __init__(self, xs: list[float], ys: list[float]) -> None:
        self.x0, self.x1 = math.log2(min(xs)), math.log2(max(xs))
        self.y0, self.y1 = math.floor(math.log10(min(ys))), max(math.ceil(math.log10(max(ys))), math.floor(math.log10(min(ys))) + 1)
        self.xs = sorted(set(xs))

    def x(self, value: float) -> float:
        return round(LEFT + (math.log2(value) - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - (math.log10(value) - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM), 1)

    def grid(self) -> Iterator[str]:
        for power in range(self.y0, self.y1 + 1):
            at = self.y(10.0**power)
            yield f'<path d="M{LEFT} {at}H{WIDTH - RIGHT}" stroke="{GREY}" stroke-opacity=".3"/>'
            yield _text(LEFT - 6, at + 4, f"{10.0**power:g}", "end")
        for value in self.xs:
            yield _text(self.x(value), HEIGHT - BOTTOM + 15, size_words(value), "middle")


def _line(plot: _Plot, number: int, points: list[tuple[float, float]]) -> str:
    colour = COLOURS[number % len(COLOURS)]
    dots = "".join(f'<circle cx="{plot.x(x)}" cy="{plot.y(y)}" r="2.5" fill="{colour}"/>' for x, y in points)
    path = " ".join(f"{plot.x(x)},{plot.y(y)}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>{dots}'


def _names(plot: _Plot, series: dict[str, list[tuple[float, float]]]) -> Iterator[str]:
    """Each name at the end of its line, pushed apart where lines end together."""
    wanted = sorted((plot.y(points[-1][1]), i, name) for i, (name, points) in enumerate(series.items()))
    below = 0.0
    for y, number, name in wanted:
        below = max(y, below + 13)
        yield _text(WIDTH - RIGHT + 8, below + 4, name[:26], "start", COLOURS[number % len(COLOURS)])


def _text(x: float, y: float, text: str, anchor: str, fill: str = GREY) -> str:
    return f'<text x="{x}" y="{round(y, 1)}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'


def size_words(size_bytes: float) -> str:
    """4 B, 64 KiB, 16 MiB, 1 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:g} GiB"
