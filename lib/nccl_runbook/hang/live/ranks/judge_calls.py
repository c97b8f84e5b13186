"""Calls that ranks launched, as counted by NCCL's RAS and torch, and where they differ."""

import collections
import dataclasses
from typing import Iterable, List, Optional, Tuple

from nccl_runbook.core.facts import counted, grouped, known
from nccl_runbook.hang.live.facts import Live, LiveGpu, LiveRank, RasCommunicator, RasRank


def by_ras(
    communicator: RasCommunicator,
    ranks: List[RasRank],
    pid: Optional[int],
    rank: Optional[int],
    world_size: Optional[int],
) -> List[RasRank]:
    """RAS's row of one process; empty if none fits. RAS covers all hosts, where pids repeat (containers); a
    communicator of the whole job has the job's ranks."""
    rows = [
        r
        for r in ranks
        if r.pid == pid and (communicator.size != world_size or rank is None or r.rank == rank)
    ]
    return rows if len(rows) == 1 else []


def launches(rank: LiveRank, look: Live) -> Optional[Tuple[int, int]]:
    """Collectives that the rank launched by RAS, at the first and last moment; None if RAS did not show the
    rank."""
    both = [
        [
            sum(r.launched.values())
            for c in known(look.ras)
            for r in by_ras(c, getattr(c, when), rank.pid, rank.rank, rank.world_size)
            if not r.missing
        ]
        for when in ("ranks", "later")
    ]
    return (sum(both[0]), sum(both[1])) if both[0] and both[1] else None


@dataclasses.dataclass(frozen=True)
class Apart:
    """Ranks that launched a different number of one collective than most. ``usual``: the number of more than
    half, or None: then either side may be late or have made an extra call."""

    call: str
    usual: Optional[int]
    most: int
    ranks: List[RasRank]

    def words(self, rank: RasRank) -> str:
        """ "launched 1 AllReduce fewer than 3 ranks"."""
        more = rank.launched[self.call] - (self.usual or 0)
        return (
            f"launched {abs(more)} {self.call} {'more' if more > 0 else 'fewer'} than "
            f"{counted(self.most, 'other rank')}"
        )

    def is_behind(self, rank: RasRank) -> bool:
        """Whether the rank launched fewer than most; False if there is no majority."""
        return self.usual is not None and rank.launched[self.call] < self.usual


def apart(ranks: Iterable[RasRank]) -> List[Apart]:
    """One row for each collective of which the ranks of a communicator launched different numbers."""
    callers = grouped((call, rank) for rank in ranks if not rank.missing for call in rank.launched)
    return [
        Apart(
            call,
            usual if 2 * most > len(rows) else None,
            most,
            [r for r in rows if r.launched[call] != usual],
        )
        for call, rows in callers.items()
        for usual, most in collections.Counter(rank.launched[call] for rank in rows).most_common(1)
        if most < len(rows)
    ]


def gpu_of(rank: LiveRank, look: Live) -> Optional[LiveGpu]:
    """The GPU on which NVML lists the rank's process (RAS knows it if NVML shows other pids); None if
    unknown."""
    indices = {
        r.nvml_index
        for c in known(look.ras)
        for r in by_ras(c, c.ranks, rank.pid, rank.rank, rank.world_size)
    }
    return next((g for g in known(look.gpus) if rank.pid in known(g.pids) or g.nvml_index in indices), None)
