"""Are the GPUs of a group really different ones? UUIDs decide, never bus ids alone; and what bus a "CUDA device 1000" is.

NCCL up to 2.30.4 compares bus ids, from 2.30.7 on UUIDs (init.cc, graph/topo.cc, read at each tag), so that two different GPUs with one bus id are
refused by the older ones only. MIG slices of one card have UUIDs of their own and the card's bus id.
"""
import dataclasses
import re
from collections.abc import Sequence

from nccl_runbook.core.facts import grouped

_DEVICE = re.compile(r"\bboth on CUDA device ([0-9a-f]{1,12})\b", re.I)


@dataclasses.dataclass(frozen=True)
class Identity:
    """One rank's GPU: ``uuid`` and ``bus_id`` "" where they were not seen."""

    rank: int
    uuid: str
    bus_id: str


@dataclasses.dataclass(frozen=True)
class Clash:
    """``kind``: shared (one UUID), slices (MIG slices of one card) or bus-id-collision (other UUIDs, one bus id)."""

    kind: str
    ranks: tuple[int, ...]
    what: str


def clashes(seen: Sequence[Identity]) -> list[Clash]:
    """Every set of ranks that is not on different GPUs, the surest first."""
    shared = [Clash("shared", tuple(i.rank for i in same), same[0].uuid) for same in _alike(seen, "uuid")]
    different = {i.uuid: i for i in reversed(seen) if i.uuid}
    return shared + [Clash("slices" if all(i.uuid.upper().startswith("MIG-") for i in same) else "bus-id-collision",
                           tuple(sorted(i.rank for i in same)), same[0].bus_id) for same in _alike(list(different.values()), "bus_id")]


def _alike(seen: Sequence[Identity], field: str) -> list[list[Identity]]:
    by_value = grouped((normal_bus(one.bus_id) if field == "bus_id" else getattr(one, field), one) for one in seen)
    return [same for value, same in by_value.items() if value and len(same) > 1]


def normal_bus(text: str) -> str:
    """A PCI bus id as the kernel writes it, "0000:0a:00.0"; the text itself where it is none (NVML writes an eight-digit domain)."""
    if not (found := re.fullmatch(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", text.strip(), re.I)):
        return text.strip().lower()
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def bus_of_message(line: str) -> str:
    """The bus id behind "both on CUDA device 1000", "" where the line has none: NCCL prints the bus id's hexadecimal digits in a row."""
    if not (found := _DEVICE.search(line)):
        return ""
    number = int(found[1], 16)
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"
