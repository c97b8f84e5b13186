"""The GPUs of this machine under a plan: does every rank really get another one? UUIDs are compared before NCCL could be started."""
from __future__ import annotations

from collections.abc import Sequence

from nccl_runbook.causes.toml import table
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.core.gpu_identity import Clash, Identity, clashes
from nccl_runbook.machine.facts import NvmlGpu
from nccl_runbook.machine.visible_devices import read_selection
from nccl_runbook.plan.groups import Group

_SMI = ("nvidia-smi --query-gpu=index,uuid,pci.bus_id --format=csv",)


def visible(gpus: Sequence[NvmlGpu | Gap], value: str | None) -> list[Identity]:
    """The GPUs that a process counts from 0 on, as NVML names them. ``value``: CUDA_VISIBLE_DEVICES, None where it is not set.

    A MIG slice has its own UUID and its card's bus id. CUDA may count in another order than NVML (CUDA_DEVICE_ORDER).
    """
    named = [e.strip() for e in value.split(",")] if value else []
    shown = read_selection(value, gpus).shown if value is not None else range(len(gpus))
    found = []
    for index, at in enumerate(shown):
        gpu = gpus[at]
        if not isinstance(gpu, Gap):
            slice_ = named[index] if index < len(named) and named[index].upper().startswith("MIG-") else ""
            found.append(Identity(index, slice_ or str(gpu.uuid), "" if isinstance(gpu.pci_bus_id, Gap) else gpu.pci_bus_id))
    return found


def judge(groups: Sequence[Group], gpus: Sequence[Identity]) -> list[Finding]:
    """A finding for every set of ranks of one NCCL group that is not on different GPUs of this machine."""
    found = []
    for group in (g for g in groups if g.name != "inference"):
        seats = [Identity(r.rank, gpus[r.gpu].uuid, gpus[r.gpu].bus_id) for r in group.ranks if r.gpu is not None and r.gpu < len(gpus)]
        found += [_finding(group, clash) for clash in clashes(seats)]
    return found


def _finding(group: Group, clash: Clash) -> Finding:
    ranks = f"ranks {' and '.join(map(str, clash.ranks[:6]))}"
    says, cause, who, advice = table("plan/areal/tags")["clash"][clash.kind]
    return Finding(
        f"devices-{clash.kind}", Severity.BROKEN if clash.kind == "shared" else Severity.WARN,
        f"{ranks} of the {group.name} group {says} ({clash.what})",
        (Evidence(f"{group.name}: {ranks}: {clash.what}", "NVML"),), (Remedy(who, advice, _SMI),), cause,
        "established" if clash.kind == "shared" else "likely")
