"""Facts of made-up machines for the rules' tests: a healthy one shaped like the 4 x H200 host, and ways to change one thing in it."""
from __future__ import annotations

import dataclasses
from typing import Any

from nccl_runbook.core.facts import Gap
from nccl_runbook.machine import facts as m

NO_NVML = Gap("absent", "nvmlInit() failed: NVML Shared Library Not Found")
NO_LIBCUDA = "libcuda.so.1: cannot open shared object file: No such file or directory"


def uuid(index: int) -> str:
    return f"ef50b44{index}-0000-4000-8000-000000000000"


def gpu(index: int) -> m.NvmlGpu:
    return m.NvmlGpu(
        nvml_index=index,
        name="NVIDIA H200",
        uuid=f"GPU-{uuid(index)}",
        pci_bus_id=f"00000000:00:{6 + index:02X}.0",
        memory=m.Memory(143771 << 20, 0, 616 << 20),
        compute_mode="default",
        mig=m.Mig(False, False, []),
        virtualisation="passthrough",
        ecc=m.Ecc(0, 0),
        remapped_rows=m.RemappedRows(0, 0, False, False),
        retired_pages=None,
        clock_reasons=["idle"],
        pcie=m.Pcie(5, 16, 5, 16),
        nvlinks=m.NvLinks([True] * 18, True),
        fabric=m.Fabric("completed", "Success"),
        utilisation_percent=0,
        temperature_c=36,
        power_w=79.3,
        owners=[],
    )


def pairs(count: int, level: str = "NV18", p2p: str = "ok") -> list[m.Pair]:
    return [m.Pair(a, b, level, p2p, p2p) for a in range(count) for b in range(a + 1, count)]


def files(count: int, error: str = "") -> list[m.DeviceFile]:
    names = [f"/dev/nvidia{i}" for i in range(count)] + ["/dev/nvidiactl", "/dev/nvidia-uvm"]
    return [m.DeviceFile(name, "crw-rw-rw-", error) for name in names]


def cuda(indices: list[int] | range, peers: bool = True, **changes: Any) -> m.CudaView:
    gpus = [m.CudaGpu(i, "NVIDIA H200", uuid(index), f"0000:00:{6 + index:02x}.0", 143771 << 20, "9.0") for i, index in enumerate(indices)]
    access = [[i == j or peers for j in range(len(gpus))] for i in range(len(gpus))]
    view = m.CudaView("2.11.0+cu130", "13.0", "", "2.28.9", "/venv/nvidia/nccl/lib/libnccl.so.2", gpus, "", 0, access)
    return dataclasses.replace(view, **changes)


def machine(count: int = 4) -> m.Machine:
    """A healthy host."""
    nvml = m.NvmlView("580.159.04", "13.0", "13.580.159.04", [gpu(i) for i in range(count)], pairs(count))
    around = m.Surroundings(files(count), {}, [], False, {f"0000:00:{6 + i:02x}.0": "nvidia" for i in range(count)})
    return m.Machine(nvml, around, cuda(range(count)))


def bare() -> m.Machine:
    """A host without any GPU, and a torch without CUDA."""
    return m.Machine(NO_NVML, m.Surroundings([], {}, [], False, {}), cuda([], torch="2.13.0+cpu", cuda="", error=NO_LIBCUDA, error_code=-1))


def change(made: m.Machine, part: str, **changes: Any) -> m.Machine:
    """The machine with fields of ``nvml``, ``surroundings`` or ``cuda`` changed."""
    return dataclasses.replace(made, **{part: dataclasses.replace(getattr(made, part), **changes)})


def change_gpu(made: m.Machine, index: int, **changes: Any) -> m.Machine:
    gpus = [dataclasses.replace(g, **changes) if g.nvml_index == index else g for g in made.nvml.gpus]
    return change(made, "nvml", gpus=gpus)


def change_all(made: m.Machine, **changes: Any) -> m.Machine:
    return change(made, "nvml", gpus=[dataclasses.replace(g, **changes) for g in made.nvml.gpus])


def visible(made: m.Machine, value: str, indices: list[int], **variables: str) -> m.Machine:
    """CUDA_VISIBLE_DEVICES set to ``value``, and CUDA showing just ``indices``."""
    return dataclasses.replace(change(made, "surroundings", variables={"CUDA_VISIBLE_DEVICES": value, **variables}), cuda=cuda(
        indices, error="" if indices else "No CUDA GPUs are available", error_code=0 if indices else 100))


def owner(pid: int = 4711, **changes: Any) -> m.Owner:
    return dataclasses.replace(m.Owner(pid, "python", "alice", 40213, "compute", False, False), **changes)
