"""Copies between every two GPUs in both directions: ranks/edges.py as one rank that sees all of them."""

import dataclasses
import time
from typing import Dict, List, Optional, Union

from nccl_runbook.core.facts import Gap, fields_in
from nccl_runbook.core.facts_world import RankResult, WorldRequest
from nccl_runbook.edges.facts import FAILED, HUNG, RIGHT, WRONG, Edge, Edges
from nccl_runbook.launch.engine import Engine

# a copy that hangs gives no event; the contexts of four GPUs take some seconds
DEADLINE_S, STALL_S = 30.0, 6.0
GPU_SIZES, CPU_SIZES = "4,1048576,67108864", "4,1048576"
MOST_HANGS = 3  # each costs STALL_S seconds: after this number the others are left out
MOST_AGAIN = 4
MOST_GPUS = 9  # a process may have eight peers of a GPU (CUDA error 711)


def collect(
    engine: Engine, devices: List[Optional[int]], budget_s: float, fault: str = ""
) -> Union[Edges, Gap]:
    """Every edge once, and failed edges once more. ``devices``: cuda indices, or None for a rehearsal on the
    CPU; ``budget_s``: seconds; ``fault``: planted by a test. A Gap if there is no edge or no time, or no
    copy began."""
    until = time.monotonic() + budget_s
    gpus = sorted({d for d in devices if d is not None})
    count = len(gpus or devices)
    if not 2 <= count <= MOST_GPUS:
        return Gap("not-run", f"this test needs 2 to {MOST_GPUS} GPUs, but this machine has {count}")
    every = [f"{a}-{b}" for a in range(count) for b in range(count) if a != b]
    edges: Dict[str, Edge] = {}
    lines: List[str] = []
    began = time.monotonic()

    def run(only: List[str]) -> Union[Dict[str, Edge], Gap]:
        request = WorldRequest(
            "every directed copy",
            "edges.py",
            [None],
            ["--devices", ",".join(map(str, gpus)) or ",".join(["cpu"] * count)]
            + ["--sizes", GPU_SIZES if gpus else CPU_SIZES]
            + (["--only", ",".join(only)] if only != every else [])
            + (["--fault", fault] if fault else []),
            deadline_s=DEADLINE_S,
            stall_s=STALL_S,
        )
        world = engine.run_all([request])[0]
        lines.append(world.shell_line)
        return _edges(world.ranks[0], gpus or [*range(count)])

    while len(edges) < len(every) and len(lines) <= MOST_HANGS and time.monotonic() + DEADLINE_S < until:
        more = run([e for e in every if e not in edges])
        if isinstance(more, Gap) and not edges:  # no copy was begun at all
            return more
        edges.update({} if isinstance(more, Gap) else more)
    for name in [n for n, e in edges.items() if e.outcome in (WRONG, HUNG)][:MOST_AGAIN]:
        if time.monotonic() + DEADLINE_S < until:
            again = run([name])
            same = not isinstance(again, Gap) and again[name].outcome == edges[name].outcome
            edges[name] = dataclasses.replace(edges[name], runs=2, seen=1 + same)
    if not lines:
        return Gap("not-run", "too little time was left for this test. Raise budget_s")
    return Edges(len(every), bool(gpus), [*edges.values()], time.monotonic() - began, lines[0])


def _edges(rank: RankResult, gpus: List[int]) -> Union[Dict[str, Edge], Gap]:
    """What one run reports of each edge that it began."""
    begun = {e["edge"]: e for e in rank.named("begin")}
    if not begun:
        return rank.why_silent()
    edges = {}
    for name, last in begun.items():
        copies = [e for e in rank.named("copy") if e["edge"] == name]
        right = [e for e in copies if not e["wrong"]]
        wrong = next((e for e in copies if e["wrong"]), None)
        is_open = not copies or copies[-1]["size_bytes"] != last["size_bytes"]
        source, target = (gpus[int(place)] for place in name.split("-"))
        outcome, text = RIGHT, ""
        if wrong:
            outcome = WRONG
        elif is_open:
            outcome = HUNG if rank.outcome == "timed-out" else FAILED
            text = "" if outcome == HUNG else " | ".join(rank.last_lines[-2:])
        edges[name] = Edge(
            source=source,
            target=target,
            outcome=outcome,
            gb_per_s=right[-1]["size_bytes"] / right[-1]["s"] / 1e9 if right else None,
            text=text,
            **fields_in(Edge, wrong or (last if is_open else copies[-1])),
        )
    return edges
