"""What one link carries each way, in 1e9 bytes a second: NVLinks by the GPU's name, PCIe lanes by generation (links.toml)."""

from __future__ import annotations

import re

from nccl_runbook.causes.toml import table


def nvlink_gb_per_s(gpu_name: str) -> float | None:
    """One NVLink of that GPU; None where it is not in the table."""
    return next((row["per_link"] for row in table("machine/links")["nvlink"] if re.search(row["name"], gpu_name)), None)


def pcie_lane_gb_per_s(generation: int) -> float | None:
    return table("machine/links")["pcie"].get(str(generation))
