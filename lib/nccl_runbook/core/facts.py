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
from typing import Any, Dict, Iterable, Iterator, List, Literal, Mapping, Tuple, TypeVar, get_args

Key = TypeVar("Key")
Value = TypeVar("Value")
Reason = Literal["unsupported", "absent", "no-permission", "timed-out", "failed", "not-run"]


@dataclasses.dataclass(frozen=True)
class Gap:
    """Something that could not be seen, and why. ``reason``: one of Reason, else ValueError; ``detail``: the
    verbatim answer. A Gap never means healthy: test for it with ``isinstance(value, Gap)``."""

    reason: Reason
    detail: str = ""

    def __post_init__(self) -> None:
        if self.reason not in get_args(Reason):
            raise ValueError(f"unknown gap reason {self.reason!r}; one of {', '.join(get_args(Reason))}")

    def __bool__(self) -> bool:
        raise TypeError("a Gap is neither true nor false: test with isinstance(value, Gap)")

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class PlainError(Exception):
    """An error whose message is all that a reader needs: a notebook shows it instead of frames."""

    def _render_traceback_(self) -> List[str]:  # IPython 9
        return [f"nccl-runbook: {self}"]


class Unusable(PlainError, ValueError):
    """A value that cannot be used. The message names the value, and says what to write instead."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One thing that was seen. ``text``: in words or verbatim; ``source``: a fact path, a log and line, or a
    trial."""

    text: str
    source: str = ""


def known(fact: Any) -> Any:
    """The value itself; an empty list for a Gap."""
    return [] if isinstance(fact, Gap) else fact


def fields_in(shape: type, values: Mapping[str, Any]) -> Dict[str, Any]:
    """Those of ``values`` for which ``shape``, a dataclass, has a field of that name. A rank or a reader that
    gives one more value is kept as soon as the fact has a field for it."""
    return {f.name: values[f.name] for f in dataclasses.fields(shape) if f.name in values}


def to_json(fact: Any) -> Any:
    """The fact as JSON values; dataclasses become objects, tuples become arrays."""
    if dataclasses.is_dataclass(fact) and not isinstance(fact, type):
        return {f.name: to_json(getattr(fact, f.name)) for f in dataclasses.fields(fact)}
    if isinstance(fact, dict):
        return {str(key): to_json(value) for key, value in fact.items()}
    return [to_json(value) for value in fact] if isinstance(fact, (list, tuple)) else fact


def values_at(
    value: Any,
    path: Sequence[str],
    beside: Dict[str, Any] = {},  # noqa: B006
) -> Iterator[Tuple[Dict[str, Any], Any]]:
    """Every value at this path (* stands for any key or index), with the fields on the way there and the
    last key as "key"."""
    if not path:
        yield beside, value
    elif isinstance(value, (dict, list)):
        parts = value if isinstance(value, dict) else {str(place): part for place, part in enumerate(value)}
        for key in parts if path[0] == "*" else parts.keys() & {path[0]}:
            yield from values_at(parts[key], path[1:], {**beside, **parts, "key": key})


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
    """The current UTC time as records write it: 2026-11-20T14:30:53Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def grouped(pairs: Iterable[Tuple[Key, Value]]) -> Dict[Key, List[Value]]:
    """Key -> its values, both in the order of the pairs."""
    values: Dict[Key, List[Value]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return values


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 rank", "3 ranks"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first ``most`` names, and the number of the others: "a, b and 3 more"."""
    return separator.join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def rank_names(ranks: Sequence[object]) -> str:
    """ "rank 3", "ranks 1, 2"; for many ranks their number and the first eight."""
    return (
        f"{len(ranks)} ranks ({', '.join(map(str, ranks[:8]))}, ...)"
        if len(ranks) > 8
        else f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(map(str, ranks))}"
    )


TIMED_OPS = ("all_reduce", "broadcast", "all_gather", "send_recv")  # its operations that have a bandwidth
_DEVICE = re.compile(r"\bboth on CUDA device ([0-9a-f]{1,12})\b", re.I)


@dataclasses.dataclass(frozen=True)
class Identity:
    """One rank's GPU. ``uuid`` and ``bus_id`` are empty if they were not seen."""

    rank: int
    uuid: str
    bus_id: str


@dataclasses.dataclass(frozen=True)
class Clash:
    """Ranks that are not on different GPUs. ``kind``: shared (one UUID), slices (MIG slices of one card) or
    bus-id-collision (different UUIDs, one bus id)."""

    kind: str
    ranks: tuple[int, ...]
    what: str


def clashes(identities: Sequence[Identity]) -> list[Clash]:
    """Every set of ranks that are not on different GPUs, the most certain first."""
    by_uuid = grouped((one.uuid, one) for one in identities if one.uuid)
    different = [same[0] for same in by_uuid.values()]
    by_bus = grouped((normal_bus(one.bus_id), one) for one in different if one.bus_id)
    shared = [
        Clash("shared", tuple(i.rank for i in same), uuid) for uuid, same in by_uuid.items() if len(same) > 1
    ]
    return shared + [
        Clash(
            "slices" if all(i.uuid.upper().startswith("MIG-") for i in same) else "bus-id-collision",
            tuple(i.rank for i in same),
            same[0].bus_id,
        )
        for same in by_bus.values()
        if len(same) > 1
    ]


def normal_bus(text: str) -> str:
    """A PCI bus id as the kernel writes it, "0000:0a:00.0" (NVML writes an eight-digit domain); any other
    text unchanged."""
    if not (
        match := re.fullmatch(
            r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", text.strip(), re.I
        )
    ):
        return text.strip().lower()
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def bus_of_message(line: str) -> str:
    """The bus id in "both on CUDA device 1000" (NCCL prints its hexadecimal digits without colons); empty if
    the line has none."""
    if not (match := _DEVICE.search(line)):
        return ""
    number = int(match[1], 16)
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"
