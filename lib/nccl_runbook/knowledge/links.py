"""What one link carries each way, in 1e9 bytes a second: NVLinks by the GPU's name, PCIe lanes by generation (links.toml)."""

from __future__ import annotations

import functools
import re
import tomllib
from importlib.resources import files


@functools.cache
def _table() -> dict:
    return tomllib.loads((files(__package__) / "links.toml").read_text(encoding="utf-8"))


def nvlink_gb_per_s(gpu_name: str) -> float | None:
    """One NVLink of that GPU; None where it is not in the table."""
    return next((row["per_link"] for row in _table()["nvlink"] if re.search(row["name"], gpu_name)), None)


def pcie_lane_gb_per_s(generation: int) -> float | None:
    return _table()["pcie"].get(str(generation))
