"""Who uses the GPUs now: asked before any test that would disturb them."""
import os
from typing import Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.machine import ask_nvml as nvml
from nccl_runbook.machine.facts import GpuUse, GpuUsers


def collect(deadline_s: float = nvml.DEADLINE_S) -> Union[GpuUsers, Gap]:
    """Memory, utilisation and processes of every GPU over two samples 0.3 s apart; a Gap where NVML cannot be asked."""
    answer = nvml.ask("use", deadline_s)
    if isinstance(answer, Gap):
        return answer
    system, lines, missing = answer
    return GpuUsers(nvml.by_index(lines, system["count"], "use", missing, GpuUse), os.path.exists("/dev/dxg"))
