"""What the links of the GPUs can carry, so that a bandwidth can be read as a share of it. Arithmetic
on facts; judges nothing.

One link each way, in 1e9 bytes a second: NVLinks by the GPU's name, PCIe lanes by generation (links.toml).
"""

import re
from collections.abc import Mapping

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Gap
from nccl_runbook.machine.facts import GpuLinks

Links = list[GpuLinks | Gap] | Gap


def nvlink(gpu: GpuLinks) -> float | None:
    """GB/s each way (1e9 bytes per second) of all active NVLinks of one GPU; None without any, or if their
    kind is unknown."""
    if isinstance(gpu.name, Gap) or isinstance(gpu.nvlinks_up, Gap) or not gpu.nvlinks_up:
        return None
    return next(
        (
            row["per_link"] * gpu.nvlinks_up
            for row in table("machine/links")["nvlink"]
            if re.search(row["name"], gpu.name)
        ),
        None,
    )


def pcie(gpu: GpuLinks) -> float | None:
    """GB/s each way of the GPU's own slot at its maximum; None if unknown."""
    rate = table("machine/links")["pcie"].get(str(gpu.pcie_generation))
    return rate * gpu.pcie_width if rate and not isinstance(gpu.pcie_width, Gap) else None


def limit(links: Links, transports: Mapping[str, int] | Gap) -> tuple[str, float] | None:
    """(link, GB/s each way) that limits a ring over these transports, by the slowest GPU; None if unknown.
    P2P uses NVLink if there is any; host memory and network cards are reached over PCIe."""
    gpus = [] if isinstance(links, Gap) else [g for g in links if not isinstance(g, Gap)]
    if isinstance(transports, Gap) or not transports or not gpus:
        return None
    over_nvlink = all(name.startswith("P2P") for name in transports) and all(nvlink(g) for g in gpus)
    rates = [nvlink(g) if over_nvlink else pcie(g) for g in gpus]
    return None if None in rates else ("NVLink" if over_nvlink else "PCIe", min(rates))
