"""Tables of the GPUs: each of them, the three views side by side, topology and peer access
as a heat map, who is on them."""

from collections.abc import Callable
from typing import Any

from nccl_runbook.core.facts import Gap
from nccl_runbook.machine.facts import CudaView, GpuUse, GpuUsers, Machine, NvmlGpu, Pair, Surroundings
from nccl_runbook.report.tables import Cell, Table, titled

# how near two GPUs are, 1 nearest; NV# is always nearest
_NEARNESS = {"PIX": 0.8, "PXB": 0.65, "PHB": 0.5, "NODE": 0.35, "SYS": 0.2}


def _show(value: Any, words: Callable[[Any], str] = str) -> Cell | str:
    return Cell(value.reason, "muted") if isinstance(value, Gap) else words(value)


def _health(gpu: NvmlGpu) -> str:
    """ECC, rows, clocks, MIG, fabric and compute mode, if they are unusual."""
    ecc = [] if isinstance(gpu.ecc, Gap) else [gpu.ecc.volatile_uncorrected, gpu.ecc.aggregate_uncorrected]
    rows = None if isinstance(gpu.remapped_rows, Gap) else gpu.remapped_rows
    state = "" if isinstance(gpu.fabric, Gap) else gpu.fabric.state
    mode = "default" if isinstance(gpu.compute_mode, Gap) else gpu.compute_mode
    words = [
        "ECC uncorrected " + " now, ".join(map(_text, ecc)) + " ever" if any(c != 0 for c in ecc) else "",
        f"{rows.uncorrectable} rows remapped{', reset pending' if rows.is_pending else ''}"
        if rows and rows.uncorrectable
        else "",
        *([] if isinstance(gpu.clock_reasons, Gap) else [r for r in gpu.clock_reasons if r != "idle"]),
        f"MIG, {len(gpu.mig.instances)} instances"
        if not isinstance(gpu.mig, Gap) and gpu.mig.is_enabled
        else "",
        f"fabric {state}" if state not in ("", "completed", "not-supported") else "",
        f"compute mode {mode}" if mode != "default" else "",
    ]
    return "; ".join(filter(None, words)) or "nothing abnormal"


def _text(value: Any) -> str:
    return value.reason if isinstance(value, Gap) else str(value)


@titled("GPUs, as NVML reports them", "nvml")
def gpus_table(machine: Machine) -> Table:
    """One row a GPU as NVML reports it."""
    nvml = machine.nvml
    return Table(
        "",
        [
            "GPU",
            "name",
            "UUID",
            "PCI bus id",
            "MiB used",
            "NVLink",
            "PCIe now (maximum)",
            "busy %",
            "temp C",
            "health",
        ],
        [[str(i), *_gpu_row(gpu)] for i, gpu in enumerate(nvml.gpus)],
        f"driver {_text(nvml.driver)}, CUDA up to {_text(nvml.cuda_driver)}. An idle PCIe link uses a "
        "lower generation.",
    )


def _gpu_row(gpu: NvmlGpu | Gap) -> list[Any]:
    if isinstance(gpu, Gap):
        return [Cell("refused", "broken"), "", "", "", "", "", "", "", gpu.detail]
    return [
        _show(gpu.name),
        _show(gpu.uuid, lambda u: u[:12]),  # enough to distinguish GPUs; the record holds the whole UUID
        _show(gpu.pci_bus_id),
        _show(gpu.memory, lambda m: f"{m.used_bytes >> 20} of {m.total_bytes >> 20}"),
        _show(gpu.nvlinks, lambda n: f"{n.up} of {len(n.active)} up"),
        _show(
            gpu.pcie,
            lambda p: (
                f"gen {_text(p.generation)} x{_text(p.width)} "
                f"({_text(p.max_generation)} x{_text(p.max_width)})"
            ),
        ),
        _show(gpu.utilisation_percent),
        _show(gpu.temperature_c),
        _health(gpu),
    ]


@titled("Three views of the same GPUs")
def views_table(machine: Machine) -> Table:
    """One row a source (NVML, device files, CUDA, variables): what it shows."""
    return Table(
        "",
        ["view", "GPUs", "what it says"],
        [
            row
            for name, view, rows in (
                (
                    "NVML",
                    machine.nvml,
                    lambda name, nvml: [
                        [name, str(len(nvml.gpus)), f"driver {_text(nvml.driver)}, NVML {_text(nvml.nvml)}"]
                    ],
                ),
                ("device files", machine.surroundings, _files_rows),
                ("CUDA in a rank", machine.cuda, _cuda_rows),
            )
            for row in (
                [[name, Cell(view.reason, "muted"), view.detail]]
                if isinstance(view, Gap)
                else rows(name, view)
            )
        ],
    )


def _files_rows(name: str, around: Surroundings) -> list[list[Any]]:
    gpus = [f for f in around.files if f.path.removeprefix("/dev/nvidia").isdigit() or f.path == "/dev/dxg"]
    files = ", ".join(
        f.path + (f" ({f.error})" if f.error not in ("", "not tried") else "")
        for f in around.files
        if "caps" not in f.path
    )
    chosen = ", ".join(f"{k}={v}" for k, v in around.variables.items() if k != "LD_LIBRARY_PATH")
    return [
        [name, str(len(gpus)), files or "none"],
        ["variables", "", chosen or "no variable that selects GPUs is set"],
        ["container", "", ", ".join(around.container) or "no sign of a container"],
    ]


def _cuda_rows(name: str, cuda: CudaView) -> list[list[Any]]:
    versions = f"torch {cuda.torch}, CUDA {cuda.cuda or 'none'}, NCCL {_text(cuda.nccl)}"
    return [
        [
            name,
            Cell(str(len(cuda.gpus)), "" if cuda.gpus else "muted"),
            ". ".join([versions, *filter(None, cuda.error.splitlines())]),
        ]
    ]


@titled("Topology and peer access", "nvml", "pairs")
def topology_table(machine: Machine) -> Table:
    """Heat map of all pairs of GPUs: distance, and whether they have access to each other's memory."""
    names = [g.nvml_index for g in machine.nvml.reached]
    pairs = {frozenset((p.a, p.b)): p for p in machine.nvml.pairs}
    return Table(
        "",
        ["", *(f"GPU {b}" for b in names)],
        [[f"GPU {a}", *(_pair_cell(pairs.get(frozenset((a, b)))) for b in names)] for a in names],
        "NV# is the number of NVLinks. PIX, PXB, PHB, NODE and SYS are increasing distances over "
        "PCIe. P2P is peer access as NVML reports it, which most GeForce cards lack.",
    )


def _pair_cell(pair: Pair | None) -> Cell:
    if pair is None:
        return Cell("", "muted")
    level = _text(pair.level)
    peer = "P2P ok" if pair.p2p_read == pair.p2p_write == "ok" else f"no P2P: {_text(pair.p2p_read)}"
    return Cell(f"{level}, {peer}", heat=1.0 if level.startswith("NV") else _NEARNESS.get(level, 0.2))


@titled("Who uses the GPUs", "nvml")
def users_table(users: GpuUsers | Machine) -> Table:
    """One row a process that uses a GPU."""
    rows = [
        row
        for index, gpu in enumerate(users.nvml.gpus if isinstance(users, Machine) else users.gpus)
        for row in _use_rows(index, gpu)
    ]
    return Table(
        "", ["GPU", "pid", "process", "user", "MiB", "kind"], rows or [["", "nobody", "", "", "", ""]]
    )


def _use_rows(index: int, gpu: NvmlGpu | GpuUse | Gap) -> list[list[Any]]:
    owners = gpu if isinstance(gpu, Gap) else gpu.owners
    if isinstance(owners, Gap):
        return [[str(index), Cell(owners.reason, "muted"), owners.detail, "", "", ""]]
    return [
        [
            str(index),
            str(o.pid),
            _show(o.name),
            Cell("this runbook", "note") if o.is_ours else _show(o.user),
            _show(o.used_mib),
            o.kind,
        ]
        for o in owners
    ]


def tables(machine: Machine) -> list[Table]:
    """The tables of step 01, as its page shows them."""
    return [views_table(machine), gpus_table(machine), topology_table(machine), users_table(machine)]
