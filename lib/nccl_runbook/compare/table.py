"""Tables of a comparison: every run of A and B, and what they differ in."""

import statistics

from nccl_runbook.compare.facts import Comparison, Sample
from nccl_runbook.core.facts import Gap
from nccl_runbook.report.tables import Cell, Table, titled


def tables(c: Comparison | Gap) -> list[Table]:
    """Runs and differences; empty if no comparison was asked for."""
    return (
        [runs_table(c), differences_table(c)]
        if not isinstance(c, Gap)
        else []
        if c.reason == "absent"
        else [runs_table(c)]
    )


@titled("A against B")
def runs_table(c: Comparison) -> Table:
    """One row a figure and arm: n, median, smallest and largest value of the runs that passed."""
    rows = [
        [
            f"{arm}: {c.arms['AB'.index(arm)]}",
            name,
            *_spread([s for s in c.samples if s.arm == arm and s.passed], name),
        ]
        for name in dict.fromkeys(n for s in c.samples for n in s.figures)
        for arm in "AB"
    ]
    failed = [
        [f"{s.arm}: run {i}", "", Cell(s.ended, "broken"), "", "", ""]
        for i, s in enumerate(c.samples, 1)
        if not s.passed
    ]
    return Table(
        "",
        ["set-up", "figure", "runs", "median", "least", "most"],
        [*rows, *failed] or [["nothing was run", *[""] * 5]],
        f"{c.what}; {len(c.samples)} of {c.wanted} runs, in the order A B B A. The figure of a run is "
        "the median of its values.",
        drawn="spread",
    )


def _spread(samples: list[Sample], name: str) -> list[str]:
    values = [statistics.median(s.figures[name]) for s in samples if s.figures.get(name)]
    return [str(len(values)), *(f"{f(values):.4g}" for f in (statistics.median, min, max) if values)]


def differences_table(c: Comparison) -> Table:
    """Differences between A and B, those that cause the effect first."""
    named = [] if isinstance(c.walk, Gap) or c.walk.why_not else c.walk.named
    rows = [
        *(
            [d.setting, d.a, d.b, Cell("makes the difference", "warn") if d.setting in named else ""]
            for d in c.differences
        ),
        *([name, "", "", Cell(f"not compared: {why}", "muted")] for name, why in c.left_out.items()),
    ]
    return Table(
        "Differences between A and B",
        ["setting", "A", "B", "effect"],
        sorted(rows, key=lambda r: r[0] not in named),
    )
