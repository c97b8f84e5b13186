"""Who sits on which GPU in the weight-update group, known before anything is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from nccl_runbook.core.facts import grouped

# on the CPU an eighth of the layers is enough: the rest says nothing about a GPU and costs seconds
REHEARSAL_SHARE = 8


@dataclasses.dataclass(frozen=True)
class Seat:
    """One rank of the group. ``role``: trainer or engine; ``cuda_index``: None for the CPU."""

    rank: int
    role: str
    cuda_index: int | None

    @property
    def place(self) -> str:
        """ "GPU 3"; empty for the CPU."""
        return "" if self.cuda_index is None else f"GPU {self.cuda_index}"


@dataclasses.dataclass(frozen=True)
class Placement:
    """The group: the trainer, then its engines."""

    seats: list[Seat]

    @property
    def devices(self) -> list[int | None]:
        """The cuda_index of each rank, None for the CPU."""
        return [s.cuda_index for s in self.seats]

    @property
    def shared(self) -> list[list[int]]:
        """Ranks that share a GPU, one list for each shared GPU. NCCL refuses these (before 2.30.7 by bus id,
        since then by UUID)."""
        return [
            ranks
            for device, ranks in grouped((s.place, s.rank) for s in self.seats).items()
            if device and len(ranks) > 1
        ]


def place(cuda_indices: Sequence[int | None]) -> Placement:
    """The trainer on the first device, an engine on each other; on a single device both share it, as in a
    one-GPU job."""
    seats = list(cuda_indices) if len(cuda_indices) != 1 else [cuda_indices[0], cuda_indices[0]]
    return Placement([Seat(rank, "engine" if rank else "trainer", index) for rank, index in enumerate(seats)])


def layers_to_move(placement: Placement, asked: int, layers_of: int) -> int:
    """Number of layers to move: ``asked``, else all on GPUs, and an eighth in a rehearsal on the CPU."""
    return asked or (
        layers_of
        if any(d is not None for d in placement.devices)
        else min(layers_of, max(1, layers_of // REHEARSAL_SHARE))
    )
