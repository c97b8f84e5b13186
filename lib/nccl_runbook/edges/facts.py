"""Facts of the directed copies between GPUs."""

import dataclasses
from typing import List, Optional

RIGHT, WRONG, HUNG, FAILED = "right", "wrong values", "hung", "failed"


@dataclasses.dataclass(frozen=True)
class Edge:
    """Copies from one GPU to another (cuda_index), of growing size.

    ``outcome``: RIGHT, WRONG, HUNG or FAILED; ``seen``: in how many of ``runs`` it ended like that;
    ``peer``: whether CUDA lets the source reach the memory of the target; ``size_bytes``: of the copy that
    failed, else of the largest; ``wrong``: how many of its int32 values arrived wrong, the first at
    ``first``; ``gb_per_s``: of the largest copy that was right; ``text``: the error.
    """

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
    """``wanted``: how many edges there are; ``on_gpus``: False for a rehearsal on the CPU; ``wall_s``:
    seconds of all runs; ``shell_line``: repeats the first run by hand."""

    wanted: int
    on_gpus: bool
    edges: List[Edge]
    wall_s: float
    shell_line: str

    @property
    def bad(self) -> List[Edge]:
        return [e for e in self.edges if e.outcome in (WRONG, HUNG)]
