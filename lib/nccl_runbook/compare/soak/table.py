"""The tables of a soak: figures by arm, and the runs that failed."""

import statistics
from collections.abc import Sequence

from nccl_runbook.compare.soak.facts import Soak
from nccl_runbook.core.facts import counted
from nccl_runbook.report.tables import Cell, Table

MOST_FAILURES = 20


def tables(soak: Soak) -> list[Table]:
    """Both tables; that of the failures only if there are any."""
    return [_figures(soak), *([_failures(soak)] if soak.failed() else [])]


def _figures(soak: Soak) -> Table:
    rows = [
        [
            name,
            arm if len(soak.arms) > 1 else "",
            str(len(values)),
            *(f"{value:.4g}" for value in _spread(values)),
        ]
        for arm in soak.arms
        for name, values in soak.figures(arm).items()
        if values
    ]
    figure = f"figure{f' ({soak.unit})' if soak.unit else ''}"
    return Table(
        "Figures of the runs that passed",
        [figure, "set-up", "runs", "median", "95th percentile", "largest", "first quarter", "last quarter"],
        rows,
        "Each run has one figure, the median of its values. If the last quarter of the runs is slower "
        "than the first quarter, the job becomes slower over time.",
    )


def _spread(values: Sequence[float]) -> list[float]:
    ordered, quarter = sorted(values), max(1, len(values) // 4)
    return [
        statistics.median(values),
        ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        ordered[-1],
        statistics.median(values[:quarter]),
        statistics.median(values[-quarter:]),
    ]


def _failures(soak: Soak) -> Table:
    failed = [(number, run) for number, run in enumerate(soak.runs, 1) if not run.passed]
    rows = [
        [
            str(number),
            run.arm if len(soak.arms) > 1 else "",
            f"{run.at_s:.0f}",
            Cell(run.ended, "broken"),
            " | ".join([*run.last_lines][-3:]),
        ]
        for number, run in failed[:MOST_FAILURES]
    ]
    more = len(failed) - MOST_FAILURES
    note = f"{counted(more, 'more failure')} in runs.jsonl." if more > 0 else ""
    return Table("Runs that failed", ["run", "set-up", "began after s", "ended", "last lines"], rows, note)
