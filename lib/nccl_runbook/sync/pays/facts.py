"""Two checkpoints and a weight sync between them: what changed, and the bytes of each method."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor of both checkpoints, or several added up (without dtype and shape). ``changed``: values
    whose bits differ; ``changed_bytes``; ``size``, ``delta``, ``fp8``: bytes that each method sends."""

    name: str
    dtype: str = ""
    shape: list[int] = dataclasses.field(default_factory=list)
    count: int = 1
    values: int = 0
    changed: int = 0
    changed_bytes: int = 0
    size: int = 0
    delta: int = 0
    fp8: int = 0


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two checkpoints. ``difference``: first tensor that is not in both with the same dtype and shape; empty
    if there is none, else the other fields are empty. ``find_s``: wall seconds to find the changes on one
    core, ``core_s``: its CPU seconds; ``counter``: the implementation; ``kinds``: tensors whose names differ
    only in numbers, added up; ``tensors``: the most changed; ``link_gb_per_s``: 1e9 bytes per second."""

    link_gb_per_s: float
    difference: str = ""
    counter: str = ""
    find_s: float = 0.0
    core_s: float = 0.0
    total: Tensor = dataclasses.field(default_factory=lambda: Tensor("all", count=0))
    kinds: list[Tensor] = dataclasses.field(default_factory=list)
    tensors: list[Tensor] = dataclasses.field(default_factory=list)

    def on_link_s(self, size: int) -> float:
        """Seconds that ``size`` bytes take on the link."""
        return size / 1e9 / self.link_gb_per_s
