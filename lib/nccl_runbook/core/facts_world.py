"""A world of ranks: what was asked for, and how each rank ended."""

import dataclasses
from typing import Any, Dict, List, Optional, Union

from nccl_runbook.core.facts import Gap

WRONG_VALUES = 6  # exit code of ranks/check.py


@dataclasses.dataclass(frozen=True)
class WorldRequest:
    """N ranks to start.

    ``entry``: file name in ranks/. ``devices``: one cuda_index a rank (indices into the CUDA_VISIBLE_DEVICES
    of the surroundings; the same index twice puts two ranks on one GPU), or None for a rank on the CPU.
    ``args``: argv of the entry. ``env``: the difference to the surroundings, None removes a variable.
    ``deadline_s``: seconds until every rank that is left is killed; ``stall_s``: the same after so many
    seconds without an event or a line from any rank, counted from the first (None: only the deadline counts).
    ``timed``: its figures are to be kept, so nothing may be set up beside it. ``of_ranks``: rank -> its own
    difference on top of ``env``.
    """

    name: str
    entry: str
    devices: List[Optional[int]]
    args: List[str] = dataclasses.field(default_factory=list)
    env: Dict[str, Optional[str]] = dataclasses.field(default_factory=dict)
    deadline_s: float = 30.0
    stall_s: Optional[float] = None
    timed: bool = True
    of_ranks: Dict[int, Dict[str, Optional[str]]] = dataclasses.field(default_factory=dict)

    @property
    def world_size(self) -> int:
        return len(self.devices)


@dataclasses.dataclass(frozen=True)
class RankResult:
    """How one rank ended.

    ``outcome``: exited, signalled, timed-out (still running at the deadline), lost (the warm process above
    it was killed) or late (the budget was over before the deadline, or the warm process did not report its
    end in time: the rank may still run); ``code``: exit code or signal number; ``events``: what the rank
    reported, in order (ranks/check.py says which); ``last_lines``: the end of its log; ``stack``: Python
    stacks at the deadline; ``state``: its process state there, as in /proc/PID/stat (T: stopped,
    D: in the kernel); ``log``: path of its whole log, "" where none was kept; ``dropped_bytes``: how much
    of a flood was left out of it.
    """

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
        """The events of that name, in order."""
        return [e for e in self.events if e.get("event") == event]

    def first(self, event: str) -> Optional[Dict[str, Any]]:
        return next(iter(self.named(event)), None)

    def why_silent(self) -> Gap:
        """Why it reported nothing."""
        stopped = f", state {self.state}" if self.state.startswith("T") else ""
        return Gap(
            "timed-out" if self.outcome in ("timed-out", "late") else "failed",
            f"the rank {self.outcome} ({self.code}){stopped} {' | '.join(self.last_lines[-3:])}".strip(),
        )


@dataclasses.dataclass(frozen=True)
class World:
    """One world that was run.

    ``started``: "fork" from the warm process or "exec" of a fresh interpreter; ``nccl_path``: the
    libnccl that was mapped; ``transports``: what NCCL's own log says carried each connection, counted
    (``{"P2P/CUMEM": 24}``); ``set_by_environment``: NCCL variables that NCCL's log says it took;
    ``algorithms``: collectives by algorithm and by protocol, counted, where NCCL logged them (``{"algo RING":
    20, "proto LL": 8}``); ``shell_line`` repeats the world by hand.
    """

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
        """Every rank exited with 0 and every value that was checked was right."""
        return all(r.outcome == "exited" and r.code == 0 for r in self.ranks) and not self.wrong

    @property
    def hung(self) -> bool:
        return any(r.outcome == "timed-out" for r in self.ranks)

    @property
    def died(self) -> List[RankResult]:
        """Ranks that ended by themselves, and not well."""
        return [
            r
            for r in self.ranks
            if (r.outcome == "exited" and r.code not in (0, WRONG_VALUES)) or r.outcome == "signalled"
        ]

    @property
    def ended(self) -> str:
        """In a few words: "passed", "lost" (how a rank ended was not reported), "wrong
        values", "hung" or "failed"."""
        if self.passed:
            return "passed"
        if any(r.outcome in ("lost", "late") for r in self.ranks):
            return "lost"
        return "wrong values" if self.wrong else "hung" if self.hung and not self.died else "failed"

    @property
    def wrong(self) -> List[Dict[str, Any]]:
        """Operations that ended with wrong values, wherever they were seen."""
        return [e for r in self.ranks for e in r.named("op") if e.get("wrong")]

    @property
    def log(self) -> str:
        """The last lines of every rank, prefixed; for reading in a notebook."""
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
        """Bus bandwidth (nccl-tests' definition) of ``op`` by size in bytes, by its slowest
        rank, in 1e9 bytes a second."""
        return {
            size: e["bus_factor"] * size / e["median_s"] / 1e9 for size, e in sorted(self._timed(op).items())
        }

    def busbw_gb_per_s(self, op: str) -> Optional[float]:
        """The bus bandwidth at the largest size of ``op``."""
        return next(reversed(list(self.busbw_by_size(op).values())), None)

    def latency_us(self, op: str) -> Optional[float]:
        """Microseconds of ``op`` at its smallest size, by its slowest rank."""
        timed = self._timed(op)
        return timed[min(timed)]["median_s"] * 1e6 if timed else None


@dataclasses.dataclass(frozen=True)
class Sample:
    """One run. ``arm``: "A", "B", or a name of the walk; ``figures``: name -> every value that the run gave,
    in order; ``ended``: "passed", or in a few words how it failed; ``wall_s``: seconds of the whole run;
    ``said``: which transports NCCL's log names, and which variables it took, where it logged at INFO."""

    arm: str
    figures: Dict[str, List[float]]
    ended: str
    wall_s: float
    last_lines: List[str] = dataclasses.field(default_factory=list)
    said: List[str] = dataclasses.field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.ended == "passed"
