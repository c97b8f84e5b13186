"""Which tensors of the engine hold what those of the trainer hold."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Pair:
    """Tensors that should hold the same bytes: several names if the other side fuses them, none if there is
    no counterpart. ``said``: same, same-rows-in-any-order, absent, dtype, shape or values."""

    trainer: list[str]
    engine: list[str]
    said: str
    detail: str


@dataclasses.dataclass(frozen=True)
class Arrival:
    """Two digests, compared. ``ranks``: number of the engine's."""

    ranks: int
    pairs: list[Pair]

    @property
    def differing(self) -> list[Pair]:
        """Pairs that do not hold the same bytes."""
        return [pair for pair in self.pairs if not pair.said.startswith("same")]
