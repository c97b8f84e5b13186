"""What NVML's health fields say of each GPU. Idle clocks, driver-reserved memory, PCIe links at rest and cards without P2P are healthy."""
import re
from collections.abc import Callable

from nccl_runbook.causes.failures import usual
from nccl_runbook.core.facts import Gap, grouped
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.machine.facts import Fabric, Machine, Mig, NvLinks, NvmlGpu, NvmlView, RemappedRows

SLOWED_BY_FAULT = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
UUIDS_SINCE_NCCL = (2, 30)  # up to 2.29 NCCL tells GPUs apart by bus id, from 2.30 by UUID (src/init.cc)


def _gpus(machine: Machine) -> list[NvmlGpu]:
    return [] if isinstance(machine.nvml, Gap) else machine.nvml.reached


def with_mig(nvml: NvmlView) -> list[NvmlGpu]:
    return [g for g in nvml.reached if isinstance(g.mig, Mig) and g.mig.is_enabled]


def indices_by_cuda(machine: Machine) -> list[int | None]:
    """nvml_index of each GPU in CUDA's order, None where the UUID is not among NVML's."""
    known = {g.uuid.lower().removeprefix("gpu-"): g.nvml_index for g in _gpus(machine) if not isinstance(g.uuid, Gap)}
    return [] if isinstance(machine.cuda, Gap) else [known.get(g.uuid.lower()) for g in machine.cuda.gpus]


def _named(gpus: list[NvmlGpu]) -> str:
    return f"GPU {', '.join(str(g.nvml_index) for g in gpus)}"


def _seen(gpus: list[NvmlGpu], field: str, text: Callable[[NvmlGpu], str]) -> tuple[Evidence, ...]:
    return tuple(Evidence(f"GPU {g.nvml_index}: {text(g)}", f"gpus.nvml.gpus[{g.nvml_index}].{field}") for g in gpus)


def _finding(rule: str, severity: Severity, gpus: list[NvmlGpu], says: str, field: str, text: Callable[[NvmlGpu], str],
             remedy: tuple[Remedy, ...], cause: str, status: str) -> Finding | None:
    """What these GPUs have in common, None without any. ``text``: what ``field`` of each shows."""
    return Finding(rule, severity, f"{_named(gpus)}: {says}", _seen(gpus, field, text), remedy, cause, status) if gpus else None


def _reset(gpus: list[NvmlGpu], why: str) -> Remedy:
    ids = ",".join(str(g.nvml_index) for g in gpus)
    return Remedy("the administrator", f"{why} Drain the host and reset the GPU; if the counter rises again, replace the card.", (
        f"nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT -i {ids}", "sudo dmesg -T | grep -iE 'NVRM|Xid' | head -50",
        f"sudo nvidia-smi --gpu-reset -i {ids}"))


def ecc_errors(machine: Machine) -> Finding | None:
    """Uncorrected ECC errors since the driver was loaded; the life-long counter alone is history."""
    bad = [g for g in _gpus(machine) if not isinstance(g.ecc, Gap) and not isinstance(g.ecc.volatile_uncorrected, Gap)
           and g.ecc.volatile_uncorrected > 0]
    return _finding(
        "ecc-errors", Severity.WARN, bad, "uncorrected ECC errors since the driver was loaded", "ecc",
        lambda g: f"{g.ecc.volatile_uncorrected} uncorrected", (_reset(bad, "The memory of this GPU has errors."),),
        "gpu-or-link-fault", "likely")


def rows_need_reset(machine: Machine) -> Finding | None:
    """Row remapping waits for a reset (warn) or found no spare row (broken). Rows that were remapped well are history."""
    rows = [g for g in _gpus(machine) if isinstance(g.remapped_rows, RemappedRows)]
    failed = [g for g in rows if g.remapped_rows.has_failed]
    bad = failed or [g for g in rows if g.remapped_rows.is_pending]
    return _finding(
        "rows-need-reset", Severity.BROKEN if failed else Severity.WARN, bad,
        "a bad memory row could not be replaced" if failed else "a bad memory row is replaced only at the next reset",
        "remapped_rows", lambda g: f"pending {g.remapped_rows.is_pending}, failed {g.remapped_rows.has_failed}",
        (_reset(bad, "Row remapping needs this."),), "gpu-or-link-fault", "established" if failed else "likely")


def nvlink_down(machine: Machine) -> Finding | None:
    """A GPU has fewer live NVLinks than another of its name. None at all is a card without a bridge, unless it sits on a switch fabric."""
    alike = grouped((gpu.name, gpu) for gpu in _gpus(machine) if isinstance(gpu.nvlinks, NvLinks) and not isinstance(gpu.name, Gap))
    return _finding(
        "nvlink-down", Severity.WARN,
        [g for group in alike.values() for g in group if _lags(g, max(o.nvlinks.up for o in group))],
        "fewer NVLinks are up than on the other GPUs of its kind", "nvlinks",
        lambda g: f"down: link {', '.join(str(i) for i, up in enumerate(g.nvlinks.active) if not up)}",
        (Remedy("the administrator", "NVLinks are down. Look for Xid 74, then reset the GPUs. If there is a bridge, reseat it.",
                ("nvidia-smi nvlink --status", "nvidia-smi nvlink -e", "sudo dmesg -T | grep -iE 'Xid|nvlink' | head -50")),),
        "gpu-or-link-fault", "likely")


def _lags(gpu: NvmlGpu, most: int) -> bool:
    on_switch = gpu.nvlinks.to_switch is True or isinstance(gpu.fabric, Fabric) and gpu.fabric.state != "not-supported"
    return gpu.nvlinks.up < most and (gpu.nvlinks.up > 0 or on_switch)


def fabric_not_ready(machine: Machine) -> Finding | None:
    """A GPU on an NVSwitch fabric that is not initialised, or was initialised with an error. Until then CUDA fails with error 802."""
    works = not isinstance(machine.cuda, Gap) and bool(machine.cuda.gpus)
    return _finding(
        "fabric-not-ready", Severity.WARN if works else Severity.BROKEN,
        [g for g in _gpus(machine) if isinstance(g.fabric, Fabric) and g.fabric.state != "not-supported"
         and (g.fabric.state != "completed" or g.fabric.status != "Success")],
        "the NVSwitch fabric is not ready", "fabric", lambda g: f"state {g.fabric.state}, status {g.fabric.status}",
        usual("fabric-manager-down"), "fabric-manager-down", "likely" if works else "established")


def clocks_held_down(machine: Machine) -> Finding | None:
    """Heat or the power supply slows a GPU. Idle, a power cap and set clocks are no faults."""
    return _finding(
        "clocks-held-down", Severity.WARN,
        [g for g in _gpus(machine) if not isinstance(g.clock_reasons, Gap) and set(g.clock_reasons) & set(SLOWED_BY_FAULT)],
        "slowed down by heat or power", "clock_reasons", lambda g: f"{', '.join(g.clock_reasons)} at {g.temperature_c} C",
        (Remedy("the administrator", "Cooling or power limits this GPU. Check fans, inlet temperature and power supply.",
                ("nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",)),), "straggler", "possible")


def compute_mode_blocks(machine: Machine) -> Finding | None:
    """Compute mode forbids processes (prohibited), or a second one (exclusive) while somebody holds the GPU. Exclusive and free: a note."""
    if not (gpus := [g for g in _gpus(machine) if g.compute_mode in ("prohibited", "exclusive-process", "exclusive-thread")]):
        return None
    taken = [g for g in gpus if g.compute_mode == "prohibited" or not isinstance(g.owners, Gap)
             and any(o.kind != "graphics" and not o.is_ours for o in g.owners)]
    said = _seen(taken or gpus, "compute_mode", lambda g: f"compute mode {g.compute_mode}{_held_by(g)}")
    if not taken:
        return Finding("compute-mode-blocks", Severity.NOTE, f"{_named(gpus)}: exclusive compute mode, one process per GPU", said)
    return Finding(
        "compute-mode-blocks", Severity.BROKEN, f"{_named(taken)}: compute mode admits no further process",
        said,
        (Remedy("the administrator", "Admit processes again.",
                tuple(f"sudo nvidia-smi -i {g.nvml_index} -c DEFAULT" for g in taken)),),
        "gpu-exclusive-mode", "established")


def _held_by(gpu: NvmlGpu) -> str:
    return "" if isinstance(gpu.owners, Gap) or not gpu.owners else f", held by pid {', '.join(str(o.pid) for o in gpu.owners)}"


def mig_splits_gpus(machine: Machine) -> Finding | None:
    """MIG is on: broken without instances; else a warning, as CUDA shows a process one slice only (CUDA 13.0)."""
    on = [] if isinstance(machine.nvml, Gap) else with_mig(machine.nvml)
    empty = [g for g in on if not g.mig.instances]
    return Finding(
        "mig-splits-gpus", Severity.BROKEN if empty else Severity.WARN,
        f"{_named(empty)}: MIG is on without instances, so CUDA cannot use these GPUs" if empty
        else f"{_named(on)}: MIG is on; a process sees one slice, and slices have no peer access",
        _seen(on, "mig", lambda g: f"MIG on, {len(g.mig.instances)} instances"),
        (Remedy("the administrator", "For NCCL over whole GPUs, disable MIG (needs idle GPUs).",
                tuple(f"sudo nvidia-smi -i {g.nvml_index} -mig 0" for g in on)),),
        "vgpu-or-mig-unsupported", "established" if empty else "possible") if on else None


def vgpu_limits(machine: Machine) -> Finding | None:
    """A vGPU of a hypervisor: peer access and NVLink depend on its profile. Passed-through GPUs are whole GPUs."""
    return _finding("vgpu-limits", Severity.NOTE, [g for g in _gpus(machine) if g.virtualisation == "vgpu"],
                    "a vGPU; its profile may lack peer access", "virtualisation", lambda g: str(g.virtualisation), (),
                    "vgpu-or-mig-unsupported", "possible")


def bus_ids_collide(machine: Machine) -> Finding | None:
    """Distinct GPUs report one PCI bus id. NCCL up to 2.29 takes them for one GPU, from 2.30 it compares UUIDs."""
    clash = _shared_bus_ids([(f"GPU {g.nvml_index}", g.uuid, g.pci_bus_id) for g in _gpus(machine)])
    if not isinstance(machine.cuda, Gap) and not (isinstance(machine.nvml, Gap) or with_mig(machine.nvml)):
        clash |= _shared_bus_ids([(f"cuda {g.cuda_index}", g.uuid, g.pci_bus_id) for g in machine.cuda.gpus])
    if not clash:
        return None
    nccl = "" if isinstance(machine.cuda, Gap) or isinstance(machine.cuda.nccl, Gap) else machine.cuda.nccl
    wheel = "12" if isinstance(machine.cuda, Gap) else machine.cuda.cuda.partition(".")[0] or "12"  # nvidia-nccl-cu12, -cu13
    told_apart = tuple(int(n) for n in re.findall(r"\d+", nccl)[:2]) >= UUIDS_SINCE_NCCL
    fix = (Remedy("you", "Use NCCL 2.30 or later, which compares UUIDs.", (f'python3 -m pip install -U "nvidia-nccl-cu{wheel}>=2.30"',)),
           Remedy("the administrator", "Different GPUs report the same bus id: an enumeration fault of this host or driver.", (
               "nvidia-smi --query-gpu=index,uuid,pci.bus_id --format=csv",)))
    return Finding(
        "bus-ids-collide", Severity.NOTE if told_apart else Severity.BROKEN,
        "different GPUs report the same PCI bus id",
        tuple(Evidence(f"{bus}: {', '.join(who)}", "gpus.nvml") for bus, who in sorted(clash.items())), fix,
        "bus-id-collision", "possible" if told_apart else "established")


def _shared_bus_ids(gpus: list[tuple[str, str | Gap, str | Gap]]) -> dict[str, list[str]]:
    rows = grouped((bus.lower(), (uuid, f"{who} {uuid}")) for who, uuid, bus in gpus
                   if isinstance(uuid, str) and isinstance(bus, str) and uuid and bus)
    return {bus: list(dict(named).values()) for bus, named in rows.items() if len(dict(named)) > 1}


def nvlink_without_peer_access(machine: Machine) -> Finding | None:
    """NVML sees NVLink between GPUs, and CUDA refuses peer access. Cards without NVLink may well have none (GeForce)."""
    if isinstance(machine.nvml, Gap) or isinstance(machine.cuda, Gap) or isinstance(machine.nvml.pairs, Gap) or with_mig(machine.nvml):
        return None
    known = {index: g.cuda_index for g, index in zip(machine.cuda.gpus, indices_by_cuda(machine), strict=True)}
    seats = [(pair, known.get(pair.a), known.get(pair.b)) for pair in machine.nvml.pairs if str(pair.level).startswith("NV")]
    bad = [pair for pair, a, b in seats if a is not None and b is not None and not machine.cuda.peer_access[a][b]]
    return Finding(
        "nvlink-without-peer-access", Severity.WARN, f"{len(bad)} pairs of GPUs have NVLink but no peer access",
        tuple(Evidence(f"GPU {p.a} and {p.b}: {p.level}, P2P read {p.p2p_read}", "gpus.cuda.peer_access") for p in bad[:8]),
        (Remedy("the administrator", "NVLink exists, but CUDA refuses peer access. Check fabric, driver and confidential mode.",
                ("nvidia-smi topo -p2p r", "nvidia-smi topo -m")),), "gpu-or-link-fault", "possible") if bad else None


RULES: tuple[Callable[[Machine], Finding | None], ...] = (
    ecc_errors, rows_need_reset, nvlink_down, fabric_not_ready, clocks_held_down, compute_mode_blocks, mig_splits_gpus, vgpu_limits,
    bus_ids_collide, nvlink_without_peer_access)
