"""Facts about one machine's GPUs: as NVML reports them, as the device files stand, and as CUDA
in a fresh rank sees them."""

import dataclasses
import functools
from typing import Any, Dict, List, Tuple, Union, get_args, get_origin, get_type_hints

from nccl_runbook.core.facts import Gap


@dataclasses.dataclass(frozen=True)
class Memory:
    """Device memory in bytes. ``used_bytes`` excludes the driver's reserve if NVML reports that separately
    (driver >= 510)."""

    total_bytes: int
    used_bytes: int
    reserved_bytes: Union[int, Gap]


@dataclasses.dataclass(frozen=True)
class Ecc:
    """Uncorrected ECC errors since the driver was loaded (volatile) and over the life of the card
    (aggregate)."""

    volatile_uncorrected: Union[int, Gap]
    aggregate_uncorrected: Union[int, Gap]


@dataclasses.dataclass(frozen=True)
class RemappedRows:
    """Rows replaced by spare ones (Ampere and later). ``is_pending``: takes effect at the next reset;
    ``has_failed``: no spare row was left."""

    correctable: int
    uncorrectable: int
    is_pending: bool
    has_failed: bool


@dataclasses.dataclass(frozen=True)
class Pcie:
    """PCIe generation and lanes, now and at most. An idle card lowers the generation by itself."""

    generation: Union[int, Gap]
    width: Union[int, Gap]
    max_generation: Union[int, Gap]
    max_width: Union[int, Gap]


@dataclasses.dataclass(frozen=True)
class NvLinks:
    """``active``: by link index; ``to_switch``: whether links end at an NVSwitch (a Gap if the driver does
    not report it, as in many VMs)."""

    active: List[bool]
    to_switch: Union[bool, Gap]

    @property
    def up(self) -> int:
        """Number of links that are up."""
        return sum(self.active)


@dataclasses.dataclass(frozen=True)
class GpuLinks:
    """What limits a GPU's bandwidth: its active NVLinks, and its PCIe slot at its maximum."""

    name: Union[str, Gap]
    nvlinks_up: Union[int, Gap]
    pcie_generation: Union[int, Gap]
    pcie_width: Union[int, Gap]


@dataclasses.dataclass(frozen=True)
class Fabric:
    """The NVSwitch fabric as the GPU reports it. ``state``: not-supported, not-started, in-progress,
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
    """A process on a GPU. ``name``, ``user``: Gaps if NVML lists a pid of another namespace; ``kind``:
    compute, graphics or both; ``is_ours``: this runbook started it."""

    pid: int
    name: Union[str, Gap]
    user: Union[str, Gap]
    used_mib: Union[int, Gap]
    kind: str
    is_ours: bool
    is_same_user: bool


def asked(call: str, names: Tuple[str, ...] = ()) -> Dict[str, Any]:
    """Metadata of a field that nvmlDeviceGet``call`` gives; ``names``: of its numbers."""
    return {"call": f"nvmlDeviceGet{call}", "names": names}


@dataclasses.dataclass(frozen=True)
class NvmlGpu:
    """One GPU as NVML reports it. ``clock_reasons``: what limits the clocks now (``idle``,
    ``hw_thermal_slowdown``); ``retired_pages``: None for cards that remap rows; ``power_w``: watts;
    ``temperature_c``: degrees Celsius. A new field goes last, with ``default=Gap("not-run", "not asked")``,
    since old records lack it."""

    nvml_index: int
    name: Union[str, Gap] = dataclasses.field(metadata=asked("Name"))
    uuid: Union[str, Gap] = dataclasses.field(metadata=asked("UUID"))
    pci_bus_id: Union[str, Gap]
    memory: Union[Memory, Gap]
    compute_mode: Union[str, Gap] = dataclasses.field(
        metadata=asked("ComputeMode", ("default", "exclusive-thread", "prohibited", "exclusive-process"))
    )
    mig: Union[Mig, Gap]
    virtualisation: Union[str, Gap] = dataclasses.field(
        metadata=asked("VirtualizationMode", ("none", "passthrough", "vgpu", "host-vgpu", "host-vsga"))
    )
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
    """Everything that NVML reported. ``gpus[i]`` is a Gap with NVML's text if the handle of nvml_index i was
    refused."""

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
    """``mode``: as ``ls`` writes it; ``error``: empty if it opened, else the errno's name (EPERM: a device
    cgroup; EACCES: its mode); "not tried" for files that only an administrator opens."""

    path: str
    mode: str
    error: str


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What surrounds a rank. ``variables``: those that select GPUs, if set; ``container``: signs of one,
    else empty; ``pci_gpus``: PCI bus id of each NVIDIA display device in /sys -> its kernel driver (empty if
    none)."""

    files: List[DeviceFile]
    variables: Dict[str, str]
    container: List[str]
    is_wsl: bool
    pci_gpus: Dict[str, str]


@dataclasses.dataclass(frozen=True)
class CudaGpu:
    """One GPU as a rank numbers it. ``uuid``: without prefix, since CUDA does not say whether it is a GPU or
    a MIG slice."""

    cuda_index: int
    name: str
    uuid: str
    pci_bus_id: str
    total_bytes: int
    capability: str


@dataclasses.dataclass(frozen=True)
class CudaView:
    """CUDA in a fresh rank. ``error``: text of the failed initialisation, else empty; ``error_code``:
    CUresult of cuInit or the first failed call (0 success, 100 no device); ``peer_access[i][j]``: cuda_index
    i may read from j; ``nccl``: version of the mapped library."""

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
    """NVML, surroundings and CUDA of one machine."""

    nvml: Union[NvmlView, Gap]
    surroundings: Union[Surroundings, Gap]
    cuda: Union[CudaView, Gap]


@dataclasses.dataclass(frozen=True)
class GpuUse:
    """One GPU over a few samples 0.3 s apart. ``utilisation_percent``: one number a sample; ``owners``: in
    the last sample."""

    nvml_index: int
    used_mib: Union[int, Gap]
    utilisation_percent: Union[List[int], Gap]
    owners: Union[List[Owner], Gap]


@dataclasses.dataclass(frozen=True)
class GpuUsers:
    """Who uses the GPUs now. ``gpus[i]`` is a Gap if the handle was refused."""

    gpus: List[Union[GpuUse, Gap]]
    is_wsl: bool


def gap_or(value: Any, make: Any) -> Any:
    """``make(value)``, or the Gap that {"reason": ..., "detail": ...} stands for."""
    return (
        Gap(value["reason"], value["detail"])
        if isinstance(value, dict) and set(value) == {"reason", "detail"}
        else make(value)
    )


def from_json(cls: Any, data: Dict[str, Any], beside: str = "") -> Any:
    """A dataclass from a JSON object, nested parts included; Gaps stay Gaps. ``beside``: a key that is no
    field. TypeError for any other unknown key."""
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
