"""What two checkpoints say about a weight sync between them: what changed, and the bytes of each method."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor of both checkpoints, or several added up, without dtype and shape. ``changed``: values whose
    bits differ; ``changed_bytes``: bytes that do. ``size``, ``delta``, ``fp8``: bytes that a method sends."""

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
    """``difference``: the first tensor that is not in both, in the same dtype and shape; "" if there is none,
    else the rest is empty. ``find_s``: seconds to find the changes on one core, ``core_s``: CPU time of
    that; ``counter``: what counted. ``kinds``: tensors whose names differ in numbers alone, added up;
    ``tensors``: the most changed ones."""

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
