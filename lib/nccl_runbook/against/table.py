"""The good run and the bad run side by side."""

from nccl_runbook.against.facts import Comparison, Difference
from nccl_runbook.report.tables import Cell, Table


def tables(compared: Comparison | None) -> list[Table]:
    """The good run beside the bad one, most telling difference first; empty without a comparison."""
    if compared is None:
        return []
    rows = [
        [
            f"{t.kind} time" if t.unit == "s" else t.kind,
            *t.spans,
            Cell(t.says, "warn" if "slower" in t.says else ""),
        ]
        for t in compared.times
    ] + [[d.name, d.good, d.bad, _relation(d)] for d in compared.differences]
    return [
        Table(
            "The good run and the bad run",
            ["what", "good run", "bad run", "could this explain the change?"],
            rows or [["everything that both runs show", "the same", "the same", ""]],
            compared.sentence,
        )
    ]


def _relation(d: Difference) -> Cell:
    word, tone = ("could", "note") if d.could_explain else ("cannot", "muted")
    return Cell(f"{word} explain the change: {d.why}", tone) if d.is_tested else Cell(f"not tested: {d.why}")
