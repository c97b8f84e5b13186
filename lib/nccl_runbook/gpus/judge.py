"""Do NVML, the device files and CUDA name the same GPUs, and if not, which variable or limit does it."""

import re
from collections.abc import Callable, Iterator

from nccl_runbook.causes.causes import table, usual
from nccl_runbook.core.facts import Gap, counted
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.gpus import judge_health as gpu_health
from nccl_runbook.machine.facts import DeviceFile, Machine, NvmlGpu
from nccl_runbook.machine.visible_devices import Selection, granted_by, read_selection

RESTS_ON = ("gpus", "gpus.nvml", "gpus.cuda", "gpus.surroundings")

_KERNEL_LOG = ("sudo dmesg -T | grep -iE 'NVRM|Xid|AER' | head -50", "nvidia-smi -q > nvidia-smi-q.txt")


def _nvml_gpus(machine: Machine) -> list[NvmlGpu | Gap]:
    return [] if isinstance(machine.nvml, Gap) else list(machine.nvml.gpus)


def _gpu_files(machine: Machine) -> list[DeviceFile]:
    return (
        []
        if isinstance(machine.surroundings, Gap)
        else [f for f in machine.surroundings.files if re.fullmatch(r"/dev/(nvidia\d+|dxg)", f.path)]
    )


def _cuda_count(machine: Machine) -> int:
    return 0 if isinstance(machine.cuda, Gap) else len(machine.cuda.gpus)


def _in_container(machine: Machine) -> bool:
    return not isinstance(machine.surroundings, Gap) and bool(machine.surroundings.container)


def _selection(machine: Machine) -> Selection | None:
    """What CUDA_VISIBLE_DEVICES lets through; None where it is not set or NVML cannot
    say which GPUs there are."""
    variables = {} if isinstance(machine.surroundings, Gap) else machine.surroundings.variables
    gpus = _nvml_gpus(machine)
    if not gpus or "CUDA_VISIBLE_DEVICES" not in variables:
        return None
    return read_selection(variables["CUDA_VISIBLE_DEVICES"], gpus)


def no_gpu_anywhere(machine: Machine) -> Finding | None:
    """No view names a GPU. Never health; a container on a host with GPUs was not given them."""
    nvml = machine.nvml
    absent = (
        nvml.reason in ("absent", "not-run") or "Driver Not Loaded" in nvml.detail
        if isinstance(nvml, Gap)
        else not nvml.gpus
    )
    if not absent or _gpu_files(machine) or _cuda_count(machine):
        return None
    error = "" if isinstance(machine.cuda, Gap) else "; ".join(machine.cuda.error.splitlines())
    on_bus = {} if isinstance(machine.surroundings, Gap) else machine.surroundings.pci_gpus
    said = tuple(
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
            "no GPU is visible here: neither NVML, nor the device files, nor CUDA show one",
            said,
            (
                Remedy(
                    "you",
                    "Run this in the container or allocation of the job. Containers get their GPUs when "
                    "they start:",
                    usual("container-gpu-access")[0].lines,
                ),
                Remedy(
                    "you",
                    "If the job ran elsewhere, read what it left. This needs no GPU:",
                    ("nccl-runbook diagnose slurm-4711.out dumps/ train.sbatch",),
                ),
            ),
        )
    if _in_container(machine):
        return Finding(
            "no-gpu-anywhere",
            Severity.WARN,
            f"the PCI bus has {len(on_bus)} NVIDIA GPUs, but this container got none",
            said,
            usual("container-gpu-access"),
            "container-gpu-access",
            "likely",
        )
    return Finding(
        "no-gpu-anywhere",
        Severity.UNKNOWN,
        f"no GPU is visible here: {len(on_bus)} on the PCI bus without NVIDIA's driver",
        said,
        (
            Remedy(
                "the administrator",
                "Load the NVIDIA driver, or install it.",
                ("sudo modprobe nvidia", "sudo dmesg -T | grep -i nvrm"),
            ),
        ),
    )


def nvml_refuses(machine: Machine) -> Iterator[Finding]:
    """NVML as a whole fails while GPUs are there. NCCL opens NVML at init and gives up with
    it (src/misc/nvmlwrap.cc, ncclNvmlEnsureInitialized)."""
    gap = machine.nvml
    if not isinstance(gap, Gap) or gap.reason == "not-run":
        return
    admin = Remedy(
        "the administrator",
        "NVML does not work on this host, and NCCL needs it. Read the kernel log:",
        _KERNEL_LOG,
    )
    restart = Remedy(
        "your launcher",
        "Restart the container: device access is often lost when the host reloads systemd "
        "(nvidia-container-toolkit's troubleshooting guide). Naming the device files prevents that.",
        (
            "docker run --gpus all --device /dev/nvidiactl --device /dev/nvidia-uvm --device "
            "/dev/nvidia0 IMAGE",
        ),
    )
    # the first row that fits: what to do, the cause, and how sure
    why = next(
        row
        for fits, *row in (
            (
                "mismatch" in gap.detail,
                usual("driver-library-mismatch"),
                "driver-library-mismatch",
                "established",
            ),
            (gap.reason == "timed-out", (admin,), "gpu-or-link-fault", "likely"),
            (
                gap.reason in ("absent", "no-permission"),
                usual("container-gpu-access"),
                "container-gpu-access",
                "established" if _in_container(machine) else "likely",
            ),
            (_in_container(machine), (restart, admin), "container-gpu-access", "likely"),
            (True, (admin,), "nvml-call-failed", "established"),
        )
        if fits
    )
    yield Finding(
        "nvml-refuses",
        Severity.BROKEN,
        f"NVML cannot be used: {gap.detail}",
        (Evidence(gap.detail, "gpus.nvml"),),
        *why,
    )


def nvml_refuses_a_gpu(machine: Machine) -> Iterator[Finding]:
    """NVML lists a GPU and then refuses its handle. NCCL asks for every handle of the host at init,
    so hiding the GPU does not help."""
    gpus = _nvml_gpus(machine)
    refused = {i: g for i, g in enumerate(gpus) if isinstance(g, Gap)}
    names = ", ".join(map(str, refused))
    said = tuple(Evidence(str(g), f"gpus.nvml.gpus[{i}]") for i, g in refused.items())
    forbidden = all(g.reason == "no-permission" for g in refused.values())
    if refused and forbidden and 0 < len(gpus) - len(refused) <= _cuda_count(machine):
        yield Finding(
            "nvml-refuses-a-gpu", Severity.NOTE, f"GPU {names}: not available to this process", said
        )
    elif refused:
        first = next(iter(refused.values()))
        is_lost = "lost" in first.detail or "requires restart" in first.detail or first.reason == "timed-out"
        yield Finding(
            "nvml-refuses-a-gpu",
            Severity.BROKEN,
            f"NVML returns an error for GPU {names} of {len(gpus)}: {first.detail}",
            said,
            (
                Remedy(
                    "the administrator",
                    "This GPU does not answer. Drain the host, look for an Xid, "
                    "reset the GPU or power-cycle the host.",
                    _KERNEL_LOG,
                ),
                Remedy(
                    "your launcher",
                    "Workaround until it is fixed: start the job in a container with only the other GPUs. "
                    "CUDA_VISIBLE_DEVICES does not help: NCCL queries NVML for every GPU of the host "
                    "(src/misc/nvmlwrap.cc).",
                    (f"docker run --gpus '\"device={_others(machine)}\"' IMAGE",),
                ),
            ),
            "gpu-or-link-fault"
            if is_lost
            else "container-gpu-access"
            if first.reason == "no-permission"
            else "nvml-call-failed",
            "likely" if first.reason == "timed-out" else "established",
        )


def _others(machine: Machine) -> str:
    return ",".join(str(i) for i, g in enumerate(_nvml_gpus(machine)) if not isinstance(g, Gap))


def _clear_lines(machine: Machine) -> tuple[str, ...]:
    return "unset CUDA_VISIBLE_DEVICES", f"export CUDA_VISIBLE_DEVICES={_others(machine)}"


def visible_devices_wrong(machine: Machine) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES names a missing GPU, repeats one, has a typo, or hides all."""
    selection = _selection(machine)
    if selection and selection.problem:
        value = machine.surroundings.variables["CUDA_VISIBLE_DEVICES"]
        yield Finding(
            "visible-devices-wrong",
            Severity.BROKEN,
            f"CUDA_VISIBLE_DEVICES={value}: {selection.problem}",
            (
                Evidence(f"CUDA_VISIBLE_DEVICES={value}", "gpus.surroundings.variables"),
                Evidence(f"NVML lists {len(_nvml_gpus(machine))} GPUs", "gpus.nvml"),
                Evidence(f"a fresh rank counts {_cuda_count(machine)}", "gpus.cuda"),
            ),
            (
                Remedy(
                    "your launcher",
                    "Unset the variable, or name GPUs that exist. If a scheduler set it, request GPUs there.",
                    _clear_lines(machine),
                ),
            ),
            "visible-devices-wrong",
            "established",
        )


def gpus_hidden(machine: Machine) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES hides some GPUs by valid means: only noted where the scheduler's own
    variable grants just these."""
    selection = _selection(machine)
    if selection and not selection.problem and (hidden := _hidden(machine, selection)):
        variables = machine.surroundings.variables
        setting = f"CUDA_VISIBLE_DEVICES={variables['CUDA_VISIBLE_DEVICES']}"
        title = f"{setting} hides GPU {', '.join(map(str, hidden))} of {len(_nvml_gpus(machine))}"
        evidence = (Evidence(setting, "gpus.surroundings.variables"),)
        if grant := granted_by(variables, selection.shown, _nvml_gpus(machine)):
            yield Finding("gpus-hidden", Severity.NOTE, f"{title}, as {grant} grants", evidence)
        else:
            yield Finding(
                "gpus-hidden",
                Severity.WARN,
                title,
                evidence,
                (
                    Remedy(
                        "your launcher",
                        "If the job should use them too, unset the variable.",
                        _clear_lines(machine),
                    ),
                ),
                "visible-devices-wrong",
                "possible",
            )


def _hidden(machine: Machine, selection: Selection) -> list[int]:
    """nvml_index of each GPU that is not shown. CUDA's own UUIDs decide where it has them: its
    order need not be NVML's."""
    indices = gpu_health.indices_by_cuda(machine)
    shown = selection.shown if len(indices) != len(selection.shown) or None in indices else indices
    return [i for i in range(len(_nvml_gpus(machine))) if i not in shown]


def indices_differ(machine: Machine) -> Iterator[Finding]:
    """CUDA numbers the GPUs in another order than nvidia-smi: the fastest first, unless
    CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    indices = gpu_health.indices_by_cuda(machine)
    if _selection(machine) is None and None not in indices and indices != sorted(indices):
        yield Finding(
            "indices-differ",
            Severity.NOTE,
            "CUDA numbers the GPUs in another order than nvidia-smi",
            (
                Evidence(
                    ", ".join(f"cuda {c} is nvidia-smi's {i}" for c, i in enumerate(indices)), "gpus.cuda"
                ),
            ),
            (
                Remedy(
                    "your launcher",
                    "To use the order of nvidia-smi:",
                    ("export CUDA_DEVICE_ORDER=PCI_BUS_ID",),
                ),
            ),
        )


def torch_without_cuda(machine: Machine) -> Iterator[Finding]:
    """GPUs are there, and this torch was built without CUDA."""
    cuda = machine.cuda
    count = len(_nvml_gpus(machine)) or len(_gpu_files(machine))
    if count and not isinstance(cuda, Gap) and not cuda.cuda:
        yield Finding(
            "torch-without-cuda",
            Severity.BROKEN,
            f"torch {cuda.torch} is built without CUDA, beside {counted(count, 'GPU')}",
            (Evidence(f"torch.version.cuda is None in torch {cuda.torch}", "gpus.cuda.cuda"),),
            (
                Remedy(
                    "you",
                    "Install a torch with CUDA for the job's interpreter.",
                    (
                        f"python3 -m pip install --force-reinstall torch=={cuda.torch.partition('+')[0]}",
                        'python3 -c "import torch; print(torch.version.cuda)"',
                    ),
                ),
            ),
        )


def cuda_cannot_start(machine: Machine) -> Iterator[Finding]:
    """A rank cannot initialise CUDA though GPUs are there, and no variable explains it."""
    cuda, selection = machine.cuda, _selection(machine)
    if (
        isinstance(cuda, Gap)
        or not cuda.error
        or cuda.gpus
        or not cuda.cuda
        or (selection and not selection.shown)
    ):
        return
    said = Evidence(cuda.error, "gpus.cuda.error")
    if row := next((r for r in table("gpus/faults")["error"] if re.search(r["said"], cuda.error)), None):
        yield Finding(
            "cuda-cannot-start",
            Severity.BROKEN,
            f"a rank cannot start CUDA: {row['means']}",
            (said,),
            gpu_health.remedies(row),
            row["cause"],
            "established",
        )
    elif missing := _unusable_files(machine):
        yield Finding(
            "cuda-cannot-start",
            Severity.BROKEN,
            f"a rank cannot start CUDA: {missing[0]}",
            (said, *(Evidence(m, "gpus.surroundings.files") for m in missing)),
            usual("container-gpu-access"),
            "container-gpu-access",
            "likely",
        )
    else:
        yield Finding(
            "cuda-cannot-start",
            Severity.BROKEN,
            f"a rank cannot start CUDA: {cuda.error.splitlines()[0]}",
            (said,),
            (
                Remedy(
                    "the administrator", "CUDA does not start on this host. Read the kernel log:", _KERNEL_LOG
                ),
            ),
        )


def _unusable_files(machine: Machine) -> list[str]:
    """Device files that CUDA needs and that are missing or cannot be opened,
    in words. WSL has /dev/dxg only."""
    if isinstance(machine.surroundings, Gap) or machine.surroundings.is_wsl:
        return []
    files = {f.path: f for f in machine.surroundings.files}
    denied = {"EPERM": "a device cgroup forbids it", "EACCES": "its mode forbids it"}
    return [
        *(f"{path} is missing" for path in ("/dev/nvidiactl", "/dev/nvidia-uvm") if path not in files),
        *(
            f"{f.path} cannot be opened: {f.error} ({denied.get(f.error, f.mode)})"
            for f in files.values()
            if f.error not in ("", "not tried")
        ),
    ]


def cuda_misses_gpus(machine: Machine) -> Iterator[Finding]:
    """CUDA starts, and counts fewer GPUs than NVML lists and the variable lets
    through. MIG is judged apart."""
    nvml, cuda = machine.nvml, machine.cuda
    if (
        isinstance(nvml, Gap)
        or isinstance(cuda, Gap)
        or not cuda.cuda
        or cuda.error
        or gpu_health.with_mig(nvml)
    ):
        return
    selection = _selection(machine)
    # those that NVML refuses have a rule of their own
    shown = [g for g in nvml.reached if not selection or g.nvml_index in selection.shown]
    if len(cuda.gpus) < len(shown) and not (selection and selection.problem):
        missing = [
            str(g.nvml_index)
            for g in shown
            if not isinstance(g.uuid, Gap) and g.nvml_index not in gpu_health.indices_by_cuda(machine)
        ]
        blocked = tuple(Evidence(b, "gpus.surroundings.files") for b in _unusable_files(machine))
        kernel_log = Remedy(
            "the administrator",
            "CUDA does not show all GPUs that NVML lists. Read the kernel log:",
            _KERNEL_LOG,
        )
        yield Finding(
            "cuda-misses-gpus",
            Severity.BROKEN,
            f"CUDA counts {len(cuda.gpus)} of the {len(shown)} GPUs that NVML lists"
            + (f"; GPU {', '.join(missing)} is left out" if missing else ""),
            (Evidence(f"a fresh rank counts {len(cuda.gpus)}", "gpus.cuda"), *blocked),
            *(
                (usual("container-gpu-access"), "container-gpu-access", "likely")
                if blocked
                else ((kernel_log,), "gpu-or-link-fault", "possible")
            ),
        )


def views_agree(machine: Machine) -> Iterator[Finding]:
    """What was seen to be right; only said when all three views were had and CUDA counts what it should."""
    nvml, cuda = machine.nvml, machine.cuda
    has_all = not any(isinstance(view, Gap) for view in (nvml, cuda, machine.surroundings))
    if has_all and cuda.gpus and not cuda.error:
        yield Finding(
            "views-agree",
            Severity.OK,
            f"NVML lists {len(nvml.gpus)} and a fresh rank can use {counted(len(cuda.gpus), 'GPU')} "
            f"({', '.join(sorted({g.name for g in cuda.gpus}))}); no fault counter, link or clock stands out",
            (Evidence(f"torch {cuda.torch}, CUDA {cuda.cuda}, NCCL {cuda.nccl}", "gpus.cuda"),),
        )


RULES: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    nvml_refuses,
    nvml_refuses_a_gpu,
    visible_devices_wrong,
    gpus_hidden,
    indices_differ,
    torch_without_cuda,
    cuda_cannot_start,
    cuda_misses_gpus,
    *gpu_health.RULES,
)


def judge(machine: Machine | Gap) -> list[Finding]:
    """All that the three views and the health fields say. Nothing at all is left to the
    step, which then is unknown."""
    if isinstance(machine, Gap):
        return []
    if not isinstance(machine.cuda, Gap) and machine.cuda.hip:
        return [
            Finding(
                "not-nvidia",
                Severity.SKIPPED,
                f"torch {machine.cuda.torch} is built for ROCm; this step supports only NVIDIA GPUs",
            )
        ]
    if nothing := no_gpu_anywhere(machine):
        return [nothing]
    found = [f for rule in RULES for f in rule(machine)]
    is_fine = all(f.severity in (Severity.NOTE, Severity.OK) for f in found)
    return [*found, *views_agree(machine)] if is_fine else found
