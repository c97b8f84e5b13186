"""PCI bridges that send peer-to-peer traffic up to the root: access control services (ACS), out of raw configuration space."""
from __future__ import annotations

from collections.abc import Mapping

from nccl_runbook.core.facts import Gap

_BRIDGE = 0x0604
_EXTENDED = 0x100
_ACS = 0x000D
_REDIRECTS = 0x04 | 0x08  # request and completion redirect (PCI Express base specification, 7.7.8)


def acs_redirects(configs: Mapping[str, bytes]) -> list[str] | Gap:
    """Bus ids of bridges where ACS redirects. Without root the kernel shows 64 bytes only, which hold no answer."""
    bridges = {bus: data for bus, data in configs.items() if len(data) >= 12 and int.from_bytes(data[10:12], "little") == _BRIDGE}
    if not bridges:
        return Gap("absent", "no PCI bridge was read") if configs else Gap("not-run", "not read here")
    if all(len(data) <= _EXTENDED for data in bridges.values()):
        return Gap("no-permission", "only root reads PCI access control: sudo lspci -vvv | grep -i acsctl")
    return sorted(bus for bus, data in bridges.items() if _control(data) & _REDIRECTS)


def _control(data: bytes) -> int:
    """ACS control register; 0 where the bridge has none."""
    at, left = _EXTENDED, 64
    while left and _EXTENDED <= at <= len(data) - 8:
        head = int.from_bytes(data[at:at + 4], "little")
        if head & 0xFFFF == _ACS:
            return int.from_bytes(data[at + 6:at + 8], "little")
        at, left = head >> 20, left - 1
    return 0
