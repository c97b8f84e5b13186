"""The nouns: what was seen on a machine, and ``Gap`` for what was not.

Facts carry no opinion: no severity, no threshold, no "should". Rules judge them elsewhere.
Standard library only, Python >= 3.9, because facts are made on the node. Every fact is a frozen dataclass
of JSON values, other facts, lists and dicts with string keys, so that ``to_json`` can write it and
a typed reader can read it back.

Glossary, one word per concept:
    rank          global rank in a world
    local_rank    rank on this host
    world size    number of ranks
    cuda_index    what torch counts, after CUDA_VISIBLE_DEVICES
    nvml_index    what NVML counts, before it
    uuid          ``GPU-...`` or ``MIG-...``, the identity of a device
    pci_bus_id    domain:bus:device.function
    host          one kernel instance (host name + boot id)
"""

import dataclasses
import re
import time
from collections.abc import Sequence
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple, TypeVar, Union

Key, Value = TypeVar("Key"), TypeVar("Value")

GAP_REASONS = ("unsupported", "absent", "no-permission", "timed-out", "failed", "not-run")


@dataclasses.dataclass(frozen=True)
class Gap:
    """Something that could not be seen, and why.

    ``reason`` is one of GAP_REASONS; ``detail`` is the verbatim text of what answered. A Gap is never falsy
    health: test for it with ``isinstance(value, Gap)``.
    """

    reason: str
    detail: str = ""

    def __post_init__(self) -> None:
        if self.reason not in GAP_REASONS:
            raise ValueError(f"unknown gap reason {self.reason!r}; one of {', '.join(GAP_REASONS)}")

    def __bool__(self) -> bool:
        raise TypeError("a Gap is neither true nor false: test with isinstance(value, Gap)")

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One thing that was seen: ``text`` in words or verbatim, ``source`` where (a fact path,
    a log and line, a trial)."""

    text: str
    source: str = ""


def known(fact: Any) -> Any:
    """The same; nothing for what could not be seen."""
    return [] if isinstance(fact, Gap) else fact


def to_json(fact: Any) -> Any:
    """The fact as JSON values; dataclasses become objects, tuples become arrays."""
    if dataclasses.is_dataclass(fact) and not isinstance(fact, type):
        return {f.name: to_json(getattr(fact, f.name)) for f in dataclasses.fields(fact)}
    if isinstance(fact, dict):
        return {str(key): to_json(value) for key, value in fact.items()}
    return [to_json(value) for value in fact] if isinstance(fact, (list, tuple)) else fact


def gaps_in(fact: Any, path: str = "") -> Iterator[tuple[str, Gap]]:
    """Every Gap below ``fact`` with its dotted path, such as ``gpus.gpus[1].ecc``."""
    if isinstance(fact, Gap):
        yield path, fact
    elif isinstance(fact, (list, tuple)):
        for index, value in enumerate(fact):
            yield from gaps_in(value, f"{path}[{index}]")
    else:
        named = (
            fact.items()
            if isinstance(fact, dict)
            else vars(fact).items()
            if dataclasses.is_dataclass(fact)
            else ()
        )
        for key, value in named:
            yield from gaps_in(value, f"{path}.{key}" if path else str(key))


def utc_now() -> str:
    """Now, as records write it: 2026-11-20T14:30:53Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def grouped(pairs: Iterable[Tuple[Key, Value]]) -> Dict[Key, List[Value]]:
    """Each key with its values, both in the order in which they come."""
    found: Dict[Key, List[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def counted(number: int, noun: str) -> str:
    """In words: "1 rank", "3 ranks"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def rank_names(ranks: Sequence[object]) -> str:
    """ "rank 3", "ranks 1, 2"; of many the number, and the first eight."""
    return (
        f"{len(ranks)} ranks ({', '.join(map(str, ranks[:8]))}, ...)"
        if len(ranks) > 8
        else f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(map(str, ranks))}"
    )


WRONG_VALUES = 6  # exit code of ranks/check.py
TIMED_OPS = ("all_reduce", "broadcast", "all_gather", "send_recv")  # its operations that have a bandwidth


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


_DEVICE = re.compile(r"\bboth on CUDA device ([0-9a-f]{1,12})\b", re.I)


@dataclasses.dataclass(frozen=True)
class Identity:
    """One rank's GPU: ``uuid`` and ``bus_id`` "" where they were not seen."""

    rank: int
    uuid: str
    bus_id: str


@dataclasses.dataclass(frozen=True)
class Clash:
    """``kind``: shared (one UUID), slices (MIG slices of one card) or bus-id-collision
    (other UUIDs, one bus id)."""

    kind: str
    ranks: tuple[int, ...]
    what: str


def clashes(seen: Sequence[Identity]) -> list[Clash]:
    """Every set of ranks that is not on different GPUs, the surest first."""
    shared = [Clash("shared", tuple(i.rank for i in same), same[0].uuid) for same in _alike(seen, "uuid")]
    different = {i.uuid: i for i in reversed(seen) if i.uuid}
    return shared + [
        Clash(
            "slices" if all(i.uuid.upper().startswith("MIG-") for i in same) else "bus-id-collision",
            tuple(sorted(i.rank for i in same)),
            same[0].bus_id,
        )
        for same in _alike(list(different.values()), "bus_id")
    ]


def _alike(seen: Sequence[Identity], field: str) -> list[list[Identity]]:
    by_value = grouped(
        (normal_bus(one.bus_id) if field == "bus_id" else getattr(one, field), one) for one in seen
    )
    return [same for value, same in by_value.items() if value and len(same) > 1]


def normal_bus(text: str) -> str:
    """A PCI bus id as the kernel writes it, "0000:0a:00.0"; the text itself where it is none (NVML
    writes an eight-digit domain)."""
    if not (
        found := re.fullmatch(
            r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", text.strip(), re.I
        )
    ):
        return text.strip().lower()
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def bus_of_message(line: str) -> str:
    """The bus id behind "both on CUDA device 1000", "" where the line has none: NCCL prints the bus id's
    hexadecimal digits in a row."""
    if not (found := _DEVICE.search(line)):
        return ""
    number = int(found[1], 16)
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"
