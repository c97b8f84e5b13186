"""An engine that is started when something needs it."""

import dataclasses
import functools
from collections.abc import Callable

from nccl_runbook.launch.engine import Engine
from nccl_runbook.launch.gpu_lists import rank_devices


@dataclasses.dataclass
class LazyRanks:
    """An engine, by ``start``, and the devices of its ranks, both at their first use: a user's own command
    needs neither. ``gpus``: CUDA indices, "" for all. EngineError and ValueError at the first use."""

    start: Callable[[], Engine]
    gpus: str = ""

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine, started once."""
        return self.start()

    @functools.cached_property
    def devices(self) -> list[int | None]:
        """The CUDA index of each rank, None for a rank on the CPU."""
        return rank_devices(self.gpus, 0, self.engine.cuda_count())
