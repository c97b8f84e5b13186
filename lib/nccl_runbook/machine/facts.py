"""Facts about one machine's GPUs: as NVML reports them, as the device files stand, and as CUDA
in a fresh rank sees them."""

import dataclasses
import functools
from typing import Any, Dict, List, Union, get_args, get_origin, get_type_hints

from nccl_runbook.core.facts import Gap


@dataclasses.dataclass(frozen=True)
class Memory:
    """Device memory in bytes. ``used_bytes`` leaves out what the driver reserves if NVML
    separates it (driver >= 510)."""

    total_bytes: int
    used_bytes: int
    reserved_bytes: Union[int, Gap]


@dataclasses.dataclass(frozen=True)
class Ecc:
    """Uncorrected ECC errors: since the driver was loaded (volatile) and over the
    life of the card (aggregate)."""

    volatile_uncorrected: Union[int, Gap]
    aggregate_uncorrected: Union[int, Gap]


@dataclasses.dataclass(frozen=True)
class RemappedRows:
    """Rows replaced by spare ones (Ampere and later). ``is_pending``: takes effect at the next reset;
    ``has_failed``: no spare was left."""

    correctable: int
    uncorrectable: int
    is_pending: bool
    has_failed: bool


@dataclasses.dataclass(frozen=True)
class Pcie:
    """PCIe generation and lanes, now and at most. A card at rest lowers the generation by itself."""

    generation: Union[int, Gap]
    width: Union[int, Gap]
    max_generation: Union[int, Gap]
    max_width: Union[int, Gap]


@dataclasses.dataclass(frozen=True)
class NvLinks:
    """``active`` per link index; ``to_switch``: the links end at an NVSwitch (a Gap where the driver does
    not say, as in many VMs)."""

    active: List[bool]
    to_switch: Union[bool, Gap]

    @property
    def up(self) -> int:
        """Number of links that are up."""
        return sum(self.active)


@dataclasses.dataclass(frozen=True)
class GpuLinks:
    """What bounds a GPU's bandwidth: live NVLinks, and its PCIe slot at its best."""

    name: Union[str, Gap]
    nvlinks_up: Union[int, Gap]
    pcie_generation: Union[int, Gap]
    pcie_width: Union[int, Gap]


@dataclasses.dataclass(frozen=True)
class Fabric:
    """The NVSwitch fabric as the GPU knows it. ``state``: not-supported, not-started, in-progress,
    completed; ``status``: NVML's text."""

    state: str
    status: str


@dataclasses.dataclass(frozen=True)
class MigInstance:
    """One MIG instance of a GPU, with the UUID and name that NVML gives it."""

    uuid: str
    name: str


@dataclasses.dataclass(frozen=True)
class Mig:
    """MIG mode of a GPU. ``pending``: the mode after the next reset."""

    is_enabled: bool
    pending: bool
    instances: List[MigInstance]


@dataclasses.dataclass(frozen=True)
class Owner:
    """A process on a GPU. ``name`` and ``user``: Gaps where NVML lists a pid of another namespace;
    ``kind``: compute, graphics or both; ``is_ours``: this runbook started it."""

    pid: int
    name: Union[str, Gap]
    user: Union[str, Gap]
    used_mib: Union[int, Gap]
    kind: str
    is_ours: bool
    is_same_user: bool


@dataclasses.dataclass(frozen=True)
class NvmlGpu:
    """One GPU as NVML tells it. ``clock_reasons``: names of the reasons that hold the clocks now (``idle``,
    ``hw_thermal_slowdown``). ``retired_pages``: None on cards that remap rows instead."""

    nvml_index: int
    name: Union[str, Gap]
    uuid: Union[str, Gap]
    pci_bus_id: Union[str, Gap]
    memory: Union[Memory, Gap]
    compute_mode: Union[str, Gap]
    mig: Union[Mig, Gap]
    virtualisation: Union[str, Gap]
    ecc: Union[Ecc, Gap]
    remapped_rows: Union[RemappedRows, Gap]
    retired_pages: Union[int, None, Gap]
    clock_reasons: Union[List[str], Gap]
    pcie: Union[Pcie, Gap]
    nvlinks: Union[NvLinks, Gap]
    fabric: Union[Fabric, Gap]
    utilisation_percent: Union[int, Gap]
    temperature_c: Union[int, Gap]
    power_w: Union[float, Gap]
    owners: Union[List[Owner], Gap]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two GPUs by nvml_index. ``level``: NV18, PIX, PXB, PHB, NODE or SYS as nvidia-smi names them;
    ``p2p_*``: "ok" or why not."""

    a: int
    b: int
    level: Union[str, Gap]
    p2p_read: Union[str, Gap]
    p2p_write: Union[str, Gap]


@dataclasses.dataclass(frozen=True)
class NvmlView:
    """All that NVML said. ``gpus[i]`` is a Gap where the handle of nvml_index i was refused; its
    detail is NVML's own text."""

    driver: Union[str, Gap]
    cuda_driver: Union[str, Gap]
    nvml: Union[str, Gap]
    gpus: List[Union[NvmlGpu, Gap]]
    pairs: Union[List[Pair], Gap]

    @property
    def reached(self) -> List[NvmlGpu]:
        """GPUs that NVML could read, without those that refused."""
        return [g for g in self.gpus if not isinstance(g, Gap)]


@dataclasses.dataclass(frozen=True)
class DeviceFile:
    """``mode`` as ls writes it; ``error``: "" if it could be opened, else the errno's name (EPERM: a device
    cgroup; EACCES: its mode); "not tried" where opening is not asked of a user."""

    path: str
    mode: str
    error: str


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What stands around a rank. ``variables``: those that select GPUs, only where set; ``container``: signs
    of one, empty if none; ``pci_gpus``: PCI bus ids of NVIDIA display devices in /sys and the kernel driver
    bound to each ("" if none)."""

    files: List[DeviceFile]
    variables: Dict[str, str]
    container: List[str]
    is_wsl: bool
    pci_gpus: Dict[str, str]


@dataclasses.dataclass(frozen=True)
class CudaGpu:
    """One GPU as a rank counts it. ``uuid`` without prefix: CUDA does not say whether
    it is a GPU's or a MIG slice's."""

    cuda_index: int
    name: str
    uuid: str
    pci_bus_id: str
    total_bytes: int
    capability: str


@dataclasses.dataclass(frozen=True)
class CudaView:
    """CUDA in a fresh rank. ``error``: text of the failed initialisation, "" if none;
    ``error_code``: cuInit's or the first failed call's CUresult (0 success, 100 no device);
    ``peer_access[i][j]``: cuda_index i may read from j; ``nccl``: of the library really mapped."""

    torch: str
    cuda: str
    hip: str
    nccl: Union[str, Gap]
    nccl_path: Union[str, Gap]
    gpus: List[CudaGpu]
    error: str
    error_code: int
    peer_access: List[List[bool]]


@dataclasses.dataclass(frozen=True)
class Machine:
    """The three views side by side."""

    nvml: Union[NvmlView, Gap]
    surroundings: Union[Surroundings, Gap]
    cuda: Union[CudaView, Gap]


@dataclasses.dataclass(frozen=True)
class GpuUse:
    """One GPU's use over a few samples 0.3 s apart. ``utilisation_percent``: one number a sample;
    ``owners``: of the last sample."""

    nvml_index: int
    used_mib: Union[int, Gap]
    utilisation_percent: Union[List[int], Gap]
    owners: Union[List[Owner], Gap]


@dataclasses.dataclass(frozen=True)
class GpuUsers:
    """Who uses the GPUs now. ``gpus[i]`` is a Gap where the handle was refused."""

    gpus: List[Union[GpuUse, Gap]]
    is_wsl: bool


def gap_or(value: Any, make: Any) -> Any:
    """``make(value)``, or the Gap that ``{"reason": ..., "detail": ...}`` stands for: how
    children write Gaps in JSON."""
    return (
        Gap(value["reason"], value["detail"])
        if isinstance(value, dict) and set(value) == {"reason", "detail"}
        else make(value)
    )


def from_json(cls: Any, data: Dict[str, Any], beside: str = "") -> Any:
    """A dataclass from a JSON object, with its parts, by its fields' types; a Gap stays one.
    ``beside``: a key that is no field. Raises TypeError for others."""
    types = get_type_hints(cls)
    return cls(
        **{
            name: gap_or(value, functools.partial(_typed, types.get(name)))
            for name, value in data.items()
            if name != beside
        }
    )


def _typed(kind: Any, value: Any) -> Any:
    """``value`` as a field of that type holds it."""
    if get_origin(kind) is Union:
        kind = next(k for k in get_args(kind) if k not in (Gap, type(None)))
    if get_origin(kind) is list:
        return [_typed(get_args(kind)[0], part) for part in value]
    return from_json(kind, value) if dataclasses.is_dataclass(kind) else value
