"""No GPU, or NVML that refuses all of them or one."""

import re
from collections.abc import Iterator

from nccl_runbook.causes.causes import remedies_for
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.machine.facts import DeviceFile, Machine, NvmlGpu

KERNEL_LOG = ("sudo dmesg -T | grep -iE 'NVRM|Xid|AER' | tail -50", "nvidia-smi -q > nvidia-smi-q.txt")


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
    if not isinstance(gap, Gap) or gap.reason == "not-run":
        return
    admin = Remedy(
        "the administrator",
        "NVML does not work on this host, and NCCL needs NVML. Read the kernel log:",
        KERNEL_LOG,
    )
    restart = Remedy(
        "your launcher",
        "Restart the container. Containers often lose access to GPUs when the host reloads systemd "
        "(nvidia-container-toolkit's troubleshooting guide). A container that is started with named "
        "device files keeps its access.",
        (
            "docker run --gpus all --device /dev/nvidiactl --device /dev/nvidia-uvm --device "
            "/dev/nvidia0 IMAGE",
        ),
    )
    inside = _in_container(machine)
    if "mismatch" in gap.detail:
        cause, status, remedy = (
            "driver-library-mismatch",
            "established",
            remedies_for("driver-library-mismatch"),
        )
    elif gap.reason == "timed-out":
        cause, status, remedy = "gpu-or-link-fault", "likely", (admin,)
    elif gap.reason in ("absent", "no-permission"):
        cause, remedy = "container-gpu-access", remedies_for("container-gpu-access")
        status = "established" if inside else "likely"
    elif inside:
        cause, status, remedy = "container-gpu-access", "likely", (restart, admin)
    else:
        cause, status, remedy = "nvml-call-failed", "established", (admin,)
    yield Finding(
        "nvml-refuses",
        Severity.BROKEN,
        f"NVML cannot be used: {gap.detail}",
        (Evidence(gap.detail, "gpus.nvml"),),
        remedy,
        cause=cause,
        status=status,
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
        has_timed_out = first.reason == "timed-out"
        is_lost = has_timed_out or "lost" in first.detail or "requires restart" in first.detail
        otherwise = "container-gpu-access" if first.reason == "no-permission" else "nvml-call-failed"
        yield Finding(
            "nvml-refuses-a-gpu",
            Severity.BROKEN,
            f"NVML returns an error for GPU {names} (of {len(gpus)} GPUs): {first.detail}",
            quotes,
            (
                Remedy(
                    "the administrator",
                    "A GPU does not answer. Drain the host, look for an Xid in the kernel log, and "
                    "reset the GPU or power-cycle the host.",
                    KERNEL_LOG,
                ),
                Remedy(
                    "your launcher",
                    "Workaround until the GPU works: start the job in a container with only the other "
                    "GPUs. CUDA_VISIBLE_DEVICES does not help, because NCCL queries NVML for every "
                    "GPU of the host (src/misc/nvmlwrap.cc).",
                    (f"docker run --gpus '\"device={others(machine)}\"' IMAGE",),
                ),
            ),
            cause="gpu-or-link-fault" if is_lost else otherwise,
            status="likely" if has_timed_out else "established",
        )


def others(machine: Machine) -> str:
    """NVML indices of the GPUs that answered, comma-separated, as in CUDA_VISIBLE_DEVICES."""
    return ",".join(str(i) for i, g in enumerate(nvml_gpus(machine)) if not isinstance(g, Gap))
