"""What the directed copies show: which GPU, which link, or all of them."""

from nccl_runbook.causes.causes import causes, remedies
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Severity
from nccl_runbook.edges.facts import FAILED, WRONG, Edge, Edges


def judge_edges(edges: Edges | Gap) -> list[Finding]:
    """One finding for all bad edges, or one for the edges that were right; empty if nothing was copied."""
    if isinstance(edges, Gap):
        return []
    bad, failed = edges.bad, [e for e in edges.edges if e.outcome == FAILED]
    if not bad and failed:  # out of memory, say: nothing that a link does
        return [Finding("edges-not-tried", Severity.UNKNOWN, _line(failed[0]), (_seen(edges, failed[0]),))]
    if not bad:
        return [_right(edges)] if edges.on_gpus and len(edges.edges) == edges.wanted else []
    cause = None
    if edges.on_gpus:
        every_peer = {*bad} == {e for e in edges.edges if e.peer}
        cause = "p2p-broken-acs-iommu" if every_peer else "gpu-or-link-fault"
    again = [e for e in bad if e.runs == 2]
    status = "established" if again and all(e.seen == 2 for e in again) else "likely"
    return [
        Finding(
            "edge-fails",
            Severity.BROKEN if edges.on_gpus and status == "established" else Severity.WARN,
            f"{_where(edges)}: {_what(bad[0])}{'' if edges.on_gpus else ', in a rehearsal on the CPU'}",
            tuple(_seen(edges, e) for e in bad),
            remedies(causes().get(cause or "gpu-or-link-fault"), status),
            cause=cause,
            status=status if cause else None,
        )
    ]


def _seen(edges: Edges, edge: Edge) -> Evidence:
    return Evidence(_line(edge), f"edges.edges[{edges.edges.index(edge)}]")


def _where(edges: Edges) -> str:
    """The edge, the pair or the GPU that all bad edges share; only how many, where others were not tried."""
    bad = edges.bad
    if len(bad) == 1:
        return f"copies from GPU {bad[0].source} to GPU {bad[0].target}"
    shared = set.intersection(*({e.source, e.target} for e in bad))
    if len(shared) == 2:
        return "copies between GPUs {} and {}, both ways".format(*sorted(shared))
    if len(shared) == 1 and len(edges.edges) == edges.wanted:
        return f"{len(bad)} copies from or to GPU {shared.pop()}"
    return f"{len(bad)} of {len(edges.edges)} tested copies between GPUs"


def _what(edge: Edge) -> str:
    if edge.outcome == WRONG:
        return f"{edge.wrong} of {edge.size_bytes // 4} values arrive wrong"
    return f"a copy of {edge.size_bytes} bytes {'hangs' if edge.outcome == 'hung' else 'fails'}"


def _line(edge: Edge) -> str:
    way = "peer access" if edge.peer else "through host memory"
    first = f", the first wrong value at index {edge.first}" if edge.first is not None else ""
    text = f": {edge.text}" if edge.text else ""
    return (
        f"GPU {edge.source} -> GPU {edge.target} ({way}): {_what(edge)}{first}, in {edge.seen} of "
        f"{edge.runs} runs{text}"
    )


def _right(edges: Edges) -> Finding:
    slowest = min(edges.edges, key=lambda e: e.gb_per_s or 0.0)
    return Finding(
        "edges-right",
        Severity.OK,
        f"all {edges.wanted} copies between GPUs arrived correctly, in both directions and without "
        f"NCCL. The slowest is GPU {slowest.source} -> GPU {slowest.target}, at "
        f"{slowest.gb_per_s or 0.0:.0f} GB/s",
        (Evidence(f"every value of copies of three sizes was compared, in {edges.wall_s:.1f} s", "edges"),),
    )
