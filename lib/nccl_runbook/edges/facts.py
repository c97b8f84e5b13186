"""Facts of the directed copies between GPUs."""

import dataclasses
from typing import List, Optional

RIGHT, WRONG, HUNG, FAILED = "right", "wrong values", "hung", "failed"


@dataclasses.dataclass(frozen=True)
class Edge:
    """Copies of growing size from one GPU to another (cuda_index). ``outcome``: RIGHT, WRONG, HUNG or
    FAILED; ``seen``: how many of ``runs`` ended so; ``peer``: whether CUDA gives the source access to the
    target's memory; ``size_bytes``: of the copy that failed, else of the largest; ``wrong``: number of int32
    values that arrived wrong, the first at ``first``; ``gb_per_s``: largest right copy, in 1e9 bytes per
    second; ``text``: the error."""

    source: int
    target: int
    outcome: str
    peer: bool
    size_bytes: int
    wrong: int = 0
    first: Optional[int] = None
    gb_per_s: Optional[float] = None
    text: str = ""
    seen: int = 1
    runs: int = 1


@dataclasses.dataclass(frozen=True)
class Edges:
    """All edges that were tried. ``wanted``: number of edges there are; ``on_gpus``: False for a rehearsal
    on the CPU; ``wall_s``: seconds of all runs; ``shell_line``: repeats the first run by hand."""

    wanted: int
    on_gpus: bool
    edges: List[Edge]
    wall_s: float
    shell_line: str

    @property
    def bad(self) -> List[Edge]:
        """Edges whose values arrived wrong, or whose copy hung."""
        return [e for e in self.edges if e.outcome in (WRONG, HUNG)]
