"""Faults of single GPUs, by NVML's health fields. Idle clocks, driver-reserved memory, PCIe links at rest and
cards without P2P are healthy."""

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nccl_runbook.causes.causes import remedies_for
from nccl_runbook.causes.tables import table, version
from nccl_runbook.core.facts import Gap, grouped, known
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.machine.facts import Ecc, Fabric, Machine, Mig, NvLinks, NvmlGpu, NvmlView, RemappedRows

SLOWED_BY_FAULT = {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}
EXCLUSIVE = ("exclusive-process", "exclusive-thread")


def reached(machine: Machine) -> list[NvmlGpu]:
    """The GPUs that NVML could read, in its order."""
    return [] if isinstance(machine.nvml, Gap) else machine.nvml.reached


def with_mig(nvml: NvmlView) -> list[NvmlGpu]:
    """The GPUs that NVML could read and that run in MIG mode."""
    return [g for g in nvml.reached if isinstance(g.mig, Mig) and g.mig.is_enabled]


def indices_by_cuda(machine: Machine) -> list[int | None]:
    """nvml_index of each GPU in CUDA's order, None if NVML does not list its UUID."""
    indices = {
        g.uuid.lower().removeprefix("gpu-"): g.nvml_index
        for g in reached(machine)
        if not isinstance(g.uuid, Gap)
    }
    return [] if isinstance(machine.cuda, Gap) else [indices.get(g.uuid.lower()) for g in machine.cuda.gpus]


def _on_fabric(gpu: NvmlGpu) -> bool:
    return isinstance(gpu.fabric, Fabric) and gpu.fabric.state != "not-supported"


def _waits(gpu: NvmlGpu) -> bool:
    return _on_fabric(gpu) and (gpu.fabric.state, gpu.fabric.status) != ("completed", "Success")


def _lags(gpu: NvmlGpu, machine: Machine) -> bool:
    """Fewer live NVLinks than another of its name. None at all is a card without a bridge, unless it sits on
    a switch fabric."""
    if isinstance(gpu.nvlinks, Gap) or isinstance(gpu.name, Gap):
        return False
    most = max(
        g.nvlinks.up for g in reached(machine) if isinstance(g.nvlinks, NvLinks) and g.name == gpu.name
    )
    return gpu.nvlinks.up < most and (gpu.nvlinks.up > 0 or gpu.nvlinks.to_switch is True or _on_fabric(gpu))


# which GPUs have a fault of faults.toml that no value of one field shows
_HAS: dict[str, Callable[[NvmlGpu, Machine], bool]] = {
    "ecc": lambda g, _: isinstance(g.ecc, Ecc) and bool(known(g.ecc.volatile_uncorrected)),
    "row-failed": lambda g, _: isinstance(g.remapped_rows, RemappedRows) and g.remapped_rows.has_failed,
    "row-pending": lambda g, _: isinstance(g.remapped_rows, RemappedRows) and g.remapped_rows.is_pending,
    "links": _lags,
    "fabric": lambda g, _: _waits(g),
    "fabric-beside-cuda": lambda g, m: _waits(g) and not isinstance(m.cuda, Gap) and bool(m.cuda.gpus),
    "clocks": lambda g, _: not SLOWED_BY_FAULT.isdisjoint(known(g.clock_reasons)),
    "mode": lambda g, _: g.compute_mode in EXCLUSIVE,
    "mode-taken": lambda g, _: (
        g.compute_mode == "prohibited"
        or (
            g.compute_mode in EXCLUSIVE
            and any(o.kind != "graphics" and not o.is_ours for o in known(g.owners))
        )
    ),
    "mig": lambda g, _: isinstance(g.mig, Mig) and g.mig.is_enabled,
    "mig-empty": lambda g, _: isinstance(g.mig, Mig) and g.mig.is_enabled and not g.mig.instances,
}
# what a field of such a GPU shows, if that is not its value
_SHOWS: dict[str, Callable[[NvmlGpu], str]] = {
    "ecc": lambda g: f"{g.ecc.volatile_uncorrected} uncorrected",
    "remapped_rows": lambda g: f"pending {g.remapped_rows.is_pending}, failed {g.remapped_rows.has_failed}",
    "nvlinks": lambda g: f"down: link {', '.join(str(i) for i, up in enumerate(g.nvlinks.active) if not up)}",
    "fabric": lambda g: f"state {g.fabric.state}, status {g.fabric.status}",
    "clock_reasons": lambda g: f"{', '.join(g.clock_reasons)} at {g.temperature_c} C",
    "compute_mode": lambda g: (
        f"compute mode {g.compute_mode}"
        + (f", held by pid {', '.join(str(o.pid) for o in g.owners)}" if known(g.owners) else "")
    ),
    "mig": lambda g: f"MIG on, {len(g.mig.instances)} instances",
}


def _with_fault(row: Mapping[str, Any], name: str, machine: Machine) -> list[NvmlGpu]:
    """GPUs whose field has one of the values of a row, or a number that is not below its ``least``, or that
    have what ``name`` stands for."""
    if "values" in row:
        return [g for g in reached(machine) if getattr(g, row["field"]) in row["values"]]
    if "least" in row:
        figures = [(g, getattr(g, row["field"])) for g in reached(machine)]
        return [g for g, n in figures if isinstance(n, (int, float)) and n >= row["least"]]
    return [g for g in reached(machine) if _HAS[name](g, machine)]


def faults(machine: Machine) -> Iterator[Finding]:
    """Faults of single GPUs, one finding for each id of faults.toml."""
    reported: set[str] = set()
    for row in table("gpus/faults")["fault"]:
        field, name = row["field"], row.get("has", "")
        bad = _with_fault(row, name, machine)
        if bad and row["id"] not in reported:
            reported.add(row["id"])
            shown = _with_fault(row, row.get("shown", name), machine)
            yield Finding(
                row["id"],
                Severity(row["severity"]),
                f"GPU {', '.join(str(g.nvml_index) for g in bad)}: {row['says']}",
                tuple(
                    Evidence(
                        f"GPU {g.nvml_index}: {_SHOWS.get(field, operator.attrgetter(field))(g)}",
                        f"gpus.nvml.gpus[{g.nvml_index}].{field}",
                    )
                    for g in shown
                ),
                remedies(row, [g.nvml_index for g in shown]),
                cause=row.get("cause"),
                status=row.get("status"),
            )


def remedies(row: Mapping[str, Any], gpus: Sequence[int] = ()) -> tuple[Remedy, ...]:
    """The remedies of a row of faults.toml, for these GPUs."""
    written = table("gpus/faults")["remedy"]
    parts = [
        remedies_for(row["cause"]) if name == "usual" else [_own_remedy(written[name], gpus)]
        for name in row["fix"]
    ]
    return tuple(itertools.chain(*parts))


def _own_remedy(row: Mapping[str, Any], gpus: Sequence[int]) -> Remedy:
    """One remedy of faults.toml for these GPUs: a line about a single GPU is repeated for each."""
    return Remedy(
        row["who"],
        row["text"],
        tuple(
            line.format(gpu=gpu, gpus=",".join(map(str, gpus)))
            for line in row["lines"]
            for gpu in (gpus if "{gpu}" in line else [""])
        ),
    )


def bus_ids_collide(machine: Machine) -> Iterator[Finding]:
    """Different GPUs report one PCI bus id. NCCL up to 2.30.4 takes them for one GPU; since 2.30.7 it
    compares UUIDs."""
    clash = _shared_bus_ids([(f"GPU {g.nvml_index}", g.uuid, g.pci_bus_id) for g in reached(machine)])
    if not isinstance(machine.cuda, Gap) and not (isinstance(machine.nvml, Gap) or with_mig(machine.nvml)):
        clash |= _shared_bus_ids([(f"cuda {g.cuda_index}", g.uuid, g.pci_bus_id) for g in machine.cuda.gpus])
    if clash:
        nccl, cuda = ("", "") if isinstance(machine.cuda, Gap) else (machine.cuda.nccl, machine.cuda.cuda)
        # up to 2.30.4 by bus id (graph/topo.cc), from 2.30.7 by UUID (init.cc)
        told_apart = isinstance(nccl, str) and version(nccl) >= (2, 30, 7)
        wheel = f"nvidia-nccl-cu{cuda.partition('.')[0] or '12'}>=2.30.7"  # nvidia-nccl-cu12, -cu13
        yield Finding(
            "bus-ids-collide",
            Severity.NOTE if told_apart else Severity.BROKEN,
            "different GPUs report the same PCI bus id",
            tuple(Evidence(f"{bus}: {', '.join(who)}", "gpus.nvml") for bus, who in sorted(clash.items())),
            (
                Remedy(
                    "you",
                    "Use NCCL 2.30.7 or later, which compares UUIDs.",
                    (f'python3 -m pip install -U "{wheel}"',),
                ),
                Remedy(
                    "the administrator",
                    "Different GPUs report the same bus id, which is an enumeration fault of the host "
                    "or driver.",
                    ("nvidia-smi --query-gpu=index,uuid,pci.bus_id --format=csv",),
                ),
            ),
            cause="bus-id-collision",
            status="possible" if told_apart else "established",
        )


def _shared_bus_ids(gpus: list[tuple[str, str | Gap, str | Gap]]) -> dict[str, list[str]]:
    """The bus ids that several GPUs report, each with the names of these GPUs."""
    on_bus = grouped(
        (bus.lower(), (uuid, f"{name} {uuid}"))
        for name, uuid, bus in gpus
        if isinstance(uuid, str) and isinstance(bus, str) and uuid and bus
    )
    by_uuid = {bus: dict(named) for bus, named in on_bus.items()}
    return {bus: list(names.values()) for bus, names in by_uuid.items() if len(names) > 1}


def nvlink_without_peer_access(machine: Machine) -> Iterator[Finding]:
    """NVML sees NVLink between GPUs, but CUDA refuses peer access. Cards without NVLink (GeForce) may have
    no peer access."""
    if isinstance(machine.nvml, Gap) or isinstance(machine.cuda, Gap) or with_mig(machine.nvml):
        return
    by_cuda = {
        index: g.cuda_index for g, index in zip(machine.cuda.gpus, indices_by_cuda(machine), strict=True)
    }
    bad = [
        pair
        for pair in known(machine.nvml.pairs)
        if str(pair.level).startswith("NV")
        and pair.a in by_cuda
        and pair.b in by_cuda
        and not machine.cuda.peer_access[by_cuda[pair.a]][by_cuda[pair.b]]
    ]
    if bad:
        yield Finding(
            "nvlink-without-peer-access",
            Severity.WARN,
            f"{len(bad)} pairs of GPUs have NVLink but no peer access",
            tuple(
                Evidence(f"GPU {p.a} and {p.b}: {p.level}, P2P read {p.p2p_read}", "gpus.cuda.peer_access")
                for p in bad[:8]
            ),
            (
                Remedy(
                    "the administrator",
                    "The GPUs have NVLink, but CUDA refuses peer access. Check the NVSwitch fabric, "
                    "the driver, and the confidential-computing mode.",
                    ("nvidia-smi topo -p2p r", "nvidia-smi topo -m"),
                ),
            ),
            cause="gpu-or-link-fault",
            status="possible",
        )


RULES: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    faults,
    bus_ids_collide,
    nvlink_without_peer_access,
)
