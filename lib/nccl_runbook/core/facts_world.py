"""A world of ranks: what was asked for, and how each rank ended."""

import dataclasses
from typing import Any, Dict, List, Optional, Union

from nccl_runbook.core.facts import Gap

WRONG_VALUES = 6  # exit code of ranks/check.py


@dataclasses.dataclass(frozen=True)
class WorldRequest:
    """N ranks to start. ``entry``: file name in ranks/, ``args``: its arguments. ``devices``: one cuda_index
    a rank (into the CUDA_VISIBLE_DEVICES of this process; the same index twice puts two ranks on one GPU),
    or None for a rank on the CPU. ``env``: variables to change, None removes one; ``of_ranks``: rank ->
    further changes. ``deadline_s``: seconds after which remaining ranks are killed; ``stall_s``: the same
    after so many seconds without an event or log line of any rank, counted from the first (None: no such
    limit). ``timed``: its figures are kept, so nothing is set up beside it. ``shown``: shell text that
    stands for an argument in JSON in the line that repeats the world, "" for none."""

    name: str
    entry: str
    devices: List[Optional[int]]
    args: List[str] = dataclasses.field(default_factory=list)
    env: Dict[str, Optional[str]] = dataclasses.field(default_factory=dict)
    deadline_s: float = 30.0
    stall_s: Optional[float] = None
    timed: bool = True
    of_ranks: Dict[int, Dict[str, Optional[str]]] = dataclasses.field(default_factory=dict)
    shown: str = ""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.devices)


@dataclasses.dataclass(frozen=True)
class RankResult:
    """How one rank ended. ``outcome``: exited, signalled, timed-out (still running at the deadline), lost
    (the warm process above it was killed) or late (the budget ended first, or the end was not reported in
    time: the rank may still run); ``code``: exit code or signal number; ``events``: what the rank reported,
    in order (see ranks/check.py); ``last_lines``: the end of its log; ``stack``, ``state``: Python stacks
    and process state at the deadline (as in /proc/PID/stat; T: stopped, D: in the kernel); ``log``: path of
    the whole log, empty if none was kept; ``dropped_bytes``: bytes of a long log that were left out."""

    rank: int
    outcome: str
    code: Optional[int] = None
    pid: int = 0
    events: List[Dict[str, Any]] = dataclasses.field(default_factory=list)
    last_lines: List[str] = dataclasses.field(default_factory=list)
    stack: str = ""
    state: str = ""
    log: str = ""
    dropped_bytes: int = 0

    def named(self, event: str) -> List[Dict[str, Any]]:
        """The rank's events of this name, in order."""
        return [e for e in self.events if e.get("event") == event]

    def first(self, event: str) -> Optional[Dict[str, Any]]:
        """The rank's first event of this name, or None."""
        return next(iter(self.named(event)), None)

    def why_silent(self) -> Gap:
        """A Gap that says why the rank did not report the expected event."""
        stopped = f", state {self.state}" if self.state.startswith("T") else ""
        return Gap(
            "timed-out" if self.outcome in ("timed-out", "late") else "failed",
            f"the rank {self.outcome} ({self.code}){stopped} {' | '.join(self.last_lines[-3:])}".strip(),
        )


@dataclasses.dataclass(frozen=True)
class World:
    """One world that was run. ``started``: "fork" from the warm process or "exec" of a fresh interpreter;
    ``nccl_path``: the mapped libnccl; ``transports``: connections by transport, from NCCL's log
    (``{"P2P/CUMEM": 24}``); ``set_by_environment``: variables that NCCL's log says it took; ``algorithms``:
    collectives by algorithm and protocol, if NCCL logged them (``{"algo RING": 20, "proto LL": 8}``);
    ``wall_s``: seconds; ``shell_line``: repeats it by hand."""

    request: WorldRequest
    ranks: List[RankResult]
    wall_s: float
    started: str
    shell_line: str
    nccl_path: Union[str, Gap]
    transports: Union[Dict[str, int], Gap]
    set_by_environment: Union[List[str], Gap]
    algorithms: Dict[str, int] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        """What a notebook shows of a trial: how it ended, how fast, and of a failure the last lines;
        the fields hold the rest."""
        rates = "".join(
            f", {op} {self.busbw_gb_per_s(op):.3g} GB/s"
            for op in dict.fromkeys(e["op"] for r in self.ranks for e in r.named("op"))
            if self.busbw_gb_per_s(op)
        )
        head = (
            f"{self.request.name}: {self.ended} in {self.wall_s:.1f} s, ranks: {len(self.ranks)}{rates}; "
            "see .log, .shell_line, .ranks"
        )
        return head if self.passed else f"{head}\n{self.log}"

    @property
    def passed(self) -> bool:
        """Whether every rank exited with 0 and every checked value was right."""
        return all(r.outcome == "exited" and r.code == 0 for r in self.ranks) and not self.wrong

    @property
    def hung(self) -> bool:
        """Whether any rank still ran at the deadline."""
        return any(r.outcome == "timed-out" for r in self.ranks)

    @property
    def died(self) -> List[RankResult]:
        """Ranks that ended by themselves with an error."""
        return [
            r
            for r in self.ranks
            if (r.outcome == "exited" and r.code not in (0, WRONG_VALUES)) or r.outcome == "signalled"
        ]

    @property
    def ended(self) -> str:
        """ "passed", "lost" (how a rank ended was not reported), "wrong values", "hung" or "failed"."""
        if self.passed:
            return "passed"
        if any(r.outcome in ("lost", "late") for r in self.ranks):
            return "lost"
        return "wrong values" if self.wrong else "hung" if self.hung and not self.died else "failed"

    @property
    def wrong(self) -> List[Dict[str, Any]]:
        """Events of operations that returned wrong values, of all ranks."""
        return [e for r in self.ranks for e in r.named("op") if e.get("wrong")]

    @property
    def log(self) -> str:
        """The last lines of every rank, each with its rank, to read in a notebook."""
        return "\n".join(f"[rank{r.rank}] {line}" for r in self.ranks for line in r.last_lines)

    def _timed(self, op: str) -> Dict[int, Dict[str, Any]]:
        """The event of the slowest rank by size in bytes; nothing for one rank, which uses no bus."""
        timed = [
            e
            for r in self.ranks
            for e in r.named("op")
            if e["op"] == op and e["size_bytes"] and e.get("median_s") and self.request.world_size > 1
        ]
        return {e["size_bytes"]: e for e in sorted(timed, key=lambda e: e["median_s"])}

    def busbw_by_size(self, op: str) -> Dict[int, float]:
        """Size in bytes -> bus bandwidth of ``op`` in GB/s (1e9 bytes per second, as nccl-tests defines it),
        of the slowest rank."""
        return {
            size: e["bus_factor"] * size / e["median_s"] / 1e9 for size, e in sorted(self._timed(op).items())
        }

    def busbw_gb_per_s(self, op: str) -> Optional[float]:
        """Bus bandwidth of ``op`` at its largest size, in GB/s; None if it was not timed."""
        return next(reversed(list(self.busbw_by_size(op).values())), None)

    def latency_us(self, op: str) -> Optional[float]:
        """Microseconds of ``op`` at its smallest size, of the slowest rank; None if it was not timed."""
        timed = self._timed(op)
        return timed[min(timed)]["median_s"] * 1e6 if timed else None


@dataclasses.dataclass(frozen=True)
class Sample:
    """One run. ``arm``: "A", "B", or a name of the walk; ``figures``: name -> every value that the run
    printed, in order; ``ended``: "passed", or how it failed; ``wall_s``: seconds of the whole run; ``said``:
    transports and variables that NCCL's log names at level INFO."""

    arm: str
    figures: Dict[str, List[float]]
    ended: str
    wall_s: float
    last_lines: List[str] = dataclasses.field(default_factory=list)
    said: List[str] = dataclasses.field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether the run ended well."""
        return self.ended == "passed"
