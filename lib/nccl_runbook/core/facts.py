"""The nouns: what was seen on a machine, and ``Gap`` for what was not.

Facts carry no opinion: no severity, no threshold, no "should". Rules judge them elsewhere. Standard library only, Python >= 3.9,
because facts are made on the node. Every fact is a frozen dataclass of JSON values, other facts, lists and dicts with string
keys, so that ``to_json`` can write it and a typed reader can read it back.

Glossary, one word per concept:
    rank          global rank in a world                 local_rank    rank on this host
    world size    number of ranks                        cuda_index    what torch counts, after CUDA_VISIBLE_DEVICES
    nvml_index    what NVML counts, before it            uuid          ``GPU-...`` or ``MIG-...``, the identity of a device
    pci_bus_id    domain:bus:device.function             host          one kernel instance (host name + boot id)
"""

import dataclasses
import time
from typing import Any, Dict, Iterable, Iterator, List, Tuple, TypeVar

Key, Value = TypeVar("Key"), TypeVar("Value")

GAP_REASONS = ("unsupported", "absent", "no-permission", "timed-out", "failed", "not-run")


@dataclasses.dataclass(frozen=True)
class Gap:
    """Something that could not be seen, and why.

    ``reason`` is one of GAP_REASONS; ``detail`` is the verbatim text of what answered. A Gap is never falsy health: test for it with
    ``isinstance(value, Gap)``.
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
    """One thing that was seen: ``text`` in words or verbatim, ``source`` where (a fact path, a log and line, a trial)."""

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
        named = fact.items() if isinstance(fact, dict) else vars(fact).items() if dataclasses.is_dataclass(fact) else ()
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
