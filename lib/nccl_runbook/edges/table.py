"""The matrix of directed copies."""

from nccl_runbook.edges.facts import RIGHT, Edges
from nccl_runbook.report.tables import Cell, Table, titled


@titled("Copies between every two GPUs, without NCCL")
def edges_table(edges: Edges) -> Table:
    """Rows are source GPUs, columns are targets: GB/s of the largest copy, or what failed."""
    by_ends = {(e.source, e.target): e for e in edges.edges}
    gpus = sorted({e.source for e in edges.edges} | {e.target for e in edges.edges})
    best = max((e.gb_per_s or 0.0 for e in edges.edges), default=0.0)
    name = "GPU" if edges.on_gpus else "CPU rank"

    def cell(source: int, target: int) -> Cell:
        edge = by_ends.get((source, target))
        if edge is None:
            return Cell("" if source == target else "not run", "muted")
        if edge.outcome != RIGHT or not edge.gb_per_s:
            return Cell(edge.outcome, "broken")
        return Cell(f"{edge.gb_per_s:.1f}", heat=edge.gb_per_s / best)

    return Table(
        "",
        ["from / to", *(f"{name} {g}" for g in gpus)],
        [[f"{name} {a}", *(cell(a, b) for b in gpus)] for a in gpus],
        "The figures are GB/s of the largest copy. Every value that arrived was compared.",
        drawn="grid",
    )


def tables(edges: Edges) -> list[Table]:
    """The tables of the copies, as the page of step 03 shows them."""
    return [edges_table(edges)]
