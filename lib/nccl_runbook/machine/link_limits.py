"""What the links of the GPUs can carry, so that a bandwidth can be read as a share of it. Arithmetic on facts; judges nothing."""

from __future__ import annotations

from collections.abc import Mapping

from nccl_runbook.core.facts import Gap
from nccl_runbook.machine.facts import GpuLinks
from nccl_runbook.machine.links import nvlink_gb_per_s, pcie_lane_gb_per_s

Links = list[GpuLinks | Gap] | Gap


def nvlink(gpu: GpuLinks) -> float | None:
    """All live NVLinks of one GPU together, GB/s each way; None without any, or where its kind is not known."""
    rate = None if isinstance(gpu.name, Gap) else nvlink_gb_per_s(gpu.name)
    return rate * gpu.nvlinks_up if rate and not isinstance(gpu.nvlinks_up, Gap) and gpu.nvlinks_up else None


def pcie(gpu: GpuLinks) -> float | None:
    """The GPU's own slot at its best, GB/s each way."""
    rate = None if isinstance(gpu.pcie_generation, Gap) else pcie_lane_gb_per_s(gpu.pcie_generation)
    return rate * gpu.pcie_width if rate and not isinstance(gpu.pcie_width, Gap) else None


def limit(links: Links, transports: Mapping[str, int] | Gap) -> tuple[str, float] | None:
    """(which link, GB/s each way) that bounds a ring over these transports, by the slowest GPU; None where that is not known.

    P2P goes over NVLink where there is any; host memory and network cards are reached over PCIe."""
    gpus = [] if isinstance(links, Gap) else [g for g in links if not isinstance(g, Gap)]
    if isinstance(transports, Gap) or not transports or not gpus:
        return None
    over_nvlink = all(name.startswith("P2P") for name in transports) and all(nvlink(g) for g in gpus)
    rates = [nvlink(g) if over_nvlink else pcie(g) for g in gpus]
    known = [r for r in rates if r is not None]
    return ("NVLink" if over_nvlink else "PCIe", min(known)) if len(known) == len(rates) else None
