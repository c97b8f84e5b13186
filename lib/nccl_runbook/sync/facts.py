"""Facts about weight syncs: which method moved which bytes, how long each phase took, and how it ended."""

import dataclasses
from typing import Any, Dict, List, Optional, Tuple, Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.sync.delta.facts import alike


@dataclasses.dataclass(frozen=True)
class SyncTime:
    """One sync. ``seconds``: slowest rank, from a common start until its last byte was in place.
    ``trainer``, ``engine`` (the slowest one): phase -> seconds, which add up to that rank's total;
    ``fsync_s``: seconds after the sync, not included."""

    repeat: int
    seconds: float
    trainer: Dict[str, float]
    engine: Dict[str, float]
    fsync_s: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class SyncVariant:
    """The same method with one change: ``bucket_mib`` (MiB), engines that multiply matrices of edge
    ``busy``, or fewer bytes. ``seconds``: of the faster of its syncs."""

    bucket_mib: int
    busy: int
    size_bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Shortage:
    """Too little memory or space, as a rank found before or during the sync; in bytes."""

    what: str
    needed_bytes: int
    free_bytes: int


@dataclasses.dataclass(frozen=True)
class SyncArm:
    """One method in a world of its own. ``wrong``: rank, repeat, tensor and number of 16-bit words that
    differed (first tensors only); ``compared``: engines whose tensors were all compared, summed over syncs;
    ``errors``: exceptions by rank; ``ended``: how each rank ended; ``last_lines``: log ends of failed ranks;
    ``by``: whose save and load the disk methods used; ``stopped``: what ended it early, such as "interrupted
    (SIGTERM)", else empty."""

    method: str
    syncs: List[SyncTime]
    compared: int
    wrong: List[Dict[str, Any]]
    errors: Dict[str, str]
    shortage: Optional[Shortage]
    ended: List[str]
    timed_out: bool
    deadline_s: float
    wall_s: float
    transports: Union[Dict[str, int], Gap]
    shell_line: str
    last_lines: List[str] = dataclasses.field(default_factory=list)
    variants: List[SyncVariant] = dataclasses.field(default_factory=list)
    by: str = ""
    stopped: str = ""

    @property
    def outcome(self) -> str:
        """The result in a few words."""
        if self.wrong:
            return f"wrong: {self.wrong[0]['tensor']}"
        if self.shortage and not self.complete:
            return (
                f"not enough {self.shortage.what}: {self.shortage.needed_bytes} bytes needed, "
                f"{self.shortage.free_bytes} free"
            )
        late = (
            "all tensors compared, all correct; time ran out during the extra runs (other bucket sizes, "
            "busy engines, fewer bytes)"
            if self.variants
            else "did not finish in time"
        )
        return (
            "all tensors compared, all correct"
            if self.complete
            else self.stopped or (late if self.timed_out and not self.broke else "did not pass")
        )

    def __str__(self) -> str:
        took = (
            f"first sync {self.syncs[0].seconds:.3f} s, later syncs {self.steady_s:.3f} s, "
            if self.syncs
            else ""
        )
        return f"{self.method}: {took}{self.outcome}"

    @property
    def complete(self) -> bool:
        """Whether every rank exited normally; says nothing about the bytes."""
        return all(e == "exited 0" for e in self.ended)

    @property
    def broke(self) -> bool:
        """Whether a rank ended with an error by itself. The others then only waited for it."""
        return any(e.startswith(("exited", "signalled")) and e != "exited 0" for e in self.ended)

    @property
    def passed(self) -> bool:
        """Whether every byte of every finished sync is right, and one sync was steady: the method finished,
        or its share of the time ran out after its syncs, or with at least a third of it spent on them. With
        less, the next sync may be hanging."""
        cut = (
            self.timed_out
            and not self.broke
            and len(self.syncs) > 1
            and (bool(self.variants) or 3 * sum(s.seconds for s in self.syncs) > self.deadline_s)
        )
        return (self.complete or cut) and not self.wrong and self.compared > 0 and bool(self.steady_s)

    @property
    def steady(self) -> Optional[SyncTime]:
        """The sync with the (lower) median time, without the first one; the first if it was the only one;
        None without any."""
        by_time = sorted(self.syncs[1:] or self.syncs, key=lambda s: s.seconds)
        return by_time[(len(by_time) - 1) // 2] if by_time else None

    def fit(self, tensors: int, size_bytes: int) -> Optional[Tuple[float, float]]:
        """(a, b) of t = N a + B / b: seconds a tensor and bytes per second, from two sizes of the same N.
        None if the time hardly grows."""
        small = [v for v in self.variants if not v.busy and v.size_bytes < size_bytes]
        if not small or not self.steady or self.steady.seconds < 1.2 * small[0].seconds:
            return None
        b = (size_bytes - small[0].size_bytes) / (self.steady.seconds - small[0].seconds)
        return max(0.0, (small[0].seconds - small[0].size_bytes / b) / tensors), b

    @property
    def steady_s(self) -> Optional[float]:
        """Seconds of the steady sync, or None if none was finished."""
        return self.steady.seconds if self.steady else None


@dataclasses.dataclass(frozen=True)
class SyncRuns:
    """All requested methods, on the shapes of one model. ``layers`` of ``layers_of`` were moved; rank 0 is
    the trainer. ``devices``: one cuda_index a rank, None for the CPU; ``gpu_names``, ``uuids``: by rank,
    empty if unknown; ``file_system``: type below ``directory``, empty if unknown; ``arms``: by method, a Gap
    if it was not run; ``tensor_parallel``: ranks of one engine, each of which keeps its rows."""

    model: str
    layers: int
    layers_of: int
    tensors: int
    size_bytes: int
    repeats: int
    directory: str
    file_system: str
    devices: List[Optional[int]]
    gpu_names: List[str]
    uuids: List[str]
    arms: Dict[str, Union[SyncArm, Gap]]
    tensor_parallel: int = 1

    @property
    def on_cpu(self) -> bool:
        """Whether all ranks ran on the CPU: a rehearsal."""
        return all(d is None for d in self.devices)

    @property
    def run(self) -> List[SyncArm]:
        """The methods that were run, in order."""
        return [a for a in self.arms.values() if isinstance(a, SyncArm)]

    def fastest(self, prefix: str) -> Optional[SyncArm]:
        """Among methods whose name begins so, the one that passed with the least steady time; None if none
        passed."""
        return min(
            (a for a in self.run if a.method.startswith(prefix) and a.passed and alike(a.method)),
            key=lambda a: a.steady_s or 0.0,
            default=None,
        )


ALL_OF_THEM = "all of them"  # who spent the time of a sync seen in several processes at once


@dataclasses.dataclass(frozen=True)
class OwnSyncTime:
    """One of the user's own syncs in one process: phase -> seconds, in order. ``rank``: -1 if unknown;
    ``source``: the log line, or the process and time of the stacks ("pid 4711, ...")."""

    rank: int
    phases: Dict[str, float]
    source: str

    @property
    def who(self) -> str:
        """ "rank 3", else the process or the file that it comes from."""
        return f"rank {self.rank}" if self.rank >= 0 else self.source.partition(",")[0]


@dataclasses.dataclass(frozen=True)
class OwnSync:
    """The user's own syncs, from lines that their code printed or from stacks of their processes."""

    syncs: List[OwnSyncTime]
