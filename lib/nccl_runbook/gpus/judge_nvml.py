"""No GPU, or NVML that refuses all of them or one."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from nccl_runbook.causes.causes import remedies_for
from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.gpus.judge_health import reached, remedies
from nccl_runbook.machine.facts import DeviceFile, Machine, NvmlGpu


def nvml_gpus(machine: Machine) -> list[NvmlGpu | Gap]:
    """One entry a GPU in NVML order, a Gap for a GPU that refused; empty if NVML itself did not answer."""
    return [] if isinstance(machine.nvml, Gap) else list(machine.nvml.gpus)


def gpu_files(machine: Machine) -> list[DeviceFile]:
    """Device files of GPUs (/dev/nvidia0, ..., or /dev/dxg on WSL); empty if they were not looked at."""
    return (
        []
        if isinstance(machine.surroundings, Gap)
        else [f for f in machine.surroundings.files if re.fullmatch(r"/dev/(nvidia\d+|dxg)", f.path)]
    )


def cuda_count(machine: Machine) -> int:
    """Number of GPUs that CUDA shows to a rank; 0 if CUDA was not asked."""
    return 0 if isinstance(machine.cuda, Gap) else len(machine.cuda.gpus)


def _in_container(machine: Machine) -> bool:
    return not isinstance(machine.surroundings, Gap) and bool(machine.surroundings.container)


def no_gpu_anywhere(machine: Machine) -> Finding | None:
    """No view names a GPU: never healthy; a container on a host with GPUs was given none."""
    nvml = machine.nvml
    absent = (
        nvml.reason in ("absent", "not-run") or "Driver Not Loaded" in nvml.detail
        if isinstance(nvml, Gap)
        else not nvml.gpus
    )
    if not absent or gpu_files(machine) or cuda_count(machine):
        return None
    error = "" if isinstance(machine.cuda, Gap) else "; ".join(machine.cuda.error.splitlines())
    on_bus = {} if isinstance(machine.surroundings, Gap) else machine.surroundings.pci_gpus
    quotes = tuple(
        Evidence(text, source)
        for text, source in (
            (str(nvml) if isinstance(nvml, Gap) else "NVML works, but lists no GPU", "gpus.nvml"),
            (error, "gpus.cuda.error"),
            (
                ", ".join(f"{bus} ({driver or 'no driver'})" for bus, driver in on_bus.items()),
                "gpus.surroundings.pci_gpus",
            ),
        )
        if text
    )
    if not on_bus:
        return Finding(
            "no-gpu-anywhere",
            Severity.UNKNOWN,
            "no GPU is visible on this machine: neither NVML, nor the device files, nor CUDA shows a GPU",
            quotes,
            (
                Remedy(
                    "you",
                    "Run this command in the job's container or allocation. A container gets its GPUs "
                    "when it starts:",
                    remedies_for("container-gpu-access")[0].lines,
                ),
                Remedy(
                    "you",
                    "If the job ran on another machine, diagnose its logs and dumps, which needs no GPU:",
                    ("nccl-runbook diagnose slurm-4711.out dumps/ train.sbatch",),
                ),
            ),
        )
    if _in_container(machine):
        return Finding(
            "no-gpu-anywhere",
            Severity.WARN,
            f"this host has {len(on_bus)} NVIDIA GPUs, but this container got no GPU",
            quotes,
            remedies_for("container-gpu-access"),
            cause="container-gpu-access",
            status="likely",
        )
    return Finding(
        "no-gpu-anywhere",
        Severity.UNKNOWN,
        f"no GPU is visible, because NVIDIA's driver does not run for the {len(on_bus)} GPUs on the PCI bus",
        quotes,
        (
            Remedy(
                "the administrator",
                "Load the NVIDIA driver, or install it.",
                ("sudo modprobe nvidia", "sudo dmesg -T | grep -i nvrm"),
            ),
        ),
    )


def nvml_refuses(machine: Machine) -> Iterator[Finding]:
    """NVML as a whole fails on a host with GPUs. NCCL opens NVML at init and fails with it
    (src/misc/nvmlwrap.cc, ncclNvmlEnsureInitialized)."""
    gap = machine.nvml
    if isinstance(gap, Gap) and gap.reason != "not-run":
        row = _meaning("nvml", gap, machine)
        yield Finding(
            "nvml-refuses",
            Severity.BROKEN,
            f"NVML cannot be used: {gap.detail}",
            (Evidence(gap.detail, "gpus.nvml"),),
            remedies(row),
            cause=row["cause"],
            status=row["status"],
        )


def _meaning(refused: str, gap: Gap, machine: Machine) -> Mapping[str, Any]:
    """The row of faults.toml that says what a refusal means. ``refused``: nvml, or gpu for a single one."""
    inside = _in_container(machine)
    return next(
        row
        for row in table("gpus/faults")[refused]
        if re.search(row["said"], str(gap)) and row.get("inside", inside) == inside
    )


def nvml_refuses_a_gpu(machine: Machine) -> Iterator[Finding]:
    """NVML lists a GPU, then refuses its handle. NCCL asks for every handle of the host at init, so hiding
    the GPU does not help."""
    gpus = nvml_gpus(machine)
    refused = {i: g for i, g in enumerate(gpus) if isinstance(g, Gap)}
    names = ", ".join(map(str, refused))
    quotes = tuple(Evidence(str(g), f"gpus.nvml.gpus[{i}]") for i, g in refused.items())
    forbidden = all(g.reason == "no-permission" for g in refused.values())
    if refused and forbidden and 0 < len(gpus) - len(refused) <= cuda_count(machine):
        yield Finding(
            "nvml-refuses-a-gpu", Severity.NOTE, f"GPU {names}: not available to this process", quotes
        )
    elif refused:
        first = next(iter(refused.values()))
        row = _meaning("gpu", first, machine)
        yield Finding(
            "nvml-refuses-a-gpu",
            Severity.BROKEN,
            f"NVML returns an error for GPU {names} (of {len(gpus)} GPUs): {first.detail}",
            quotes,
            remedies(row, [g.nvml_index for g in reached(machine)]),
            cause=row["cause"],
            status=row["status"],
        )
