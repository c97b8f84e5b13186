"""CUDA that cannot start, or shows other GPUs than NVML."""

import re
from collections.abc import Iterator

from nccl_runbook.causes.causes import remedies_for
from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Gap, counted
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.gpus import judge_health as gpu_health
from nccl_runbook.gpus.judge_nvml import gpu_files, nvml_gpus
from nccl_runbook.machine.facts import Machine
from nccl_runbook.machine.visible_devices import Selection, read_selection


def selection_of(machine: Machine) -> Selection | None:
    """GPUs that CUDA_VISIBLE_DEVICES allows; None if the variable is not set or NVML does not list the
    GPUs."""
    variables = {} if isinstance(machine.surroundings, Gap) else machine.surroundings.variables
    gpus = nvml_gpus(machine)
    value = variables.get("CUDA_VISIBLE_DEVICES")
    return read_selection(value, gpus) if gpus and value is not None else None


def torch_without_cuda(machine: Machine) -> Iterator[Finding]:
    """The host has GPUs, and this torch was built without CUDA."""
    cuda = machine.cuda
    count = len(nvml_gpus(machine)) or len(gpu_files(machine))
    if count and not isinstance(cuda, Gap) and not cuda.cuda:
        yield Finding(
            "torch-without-cuda",
            Severity.BROKEN,
            f"torch {cuda.torch} is built without CUDA, but this host has {counted(count, 'GPU')}",
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
    """The host has GPUs, a rank cannot initialise CUDA, and no variable explains it."""
    cuda, selection = machine.cuda, selection_of(machine)
    if (
        isinstance(cuda, Gap)
        or not cuda.error
        or cuda.gpus
        or not cuda.cuda
        or (selection and not selection.shown)
    ):
        return
    quote = Evidence(cuda.error, "gpus.cuda.error")
    if row := next((r for r in table("gpus/faults")["error"] if re.search(r["said"], cuda.error)), None):
        yield Finding(
            "cuda-cannot-start",
            Severity.BROKEN,
            f"a rank cannot start CUDA: {row['means']}",
            (quote,),
            gpu_health.remedies(row),
            cause=row["cause"],
            status="established",
        )
    elif missing := _unusable_files(machine):
        yield Finding(
            "cuda-cannot-start",
            Severity.BROKEN,
            f"a rank cannot start CUDA: {missing[0]}",
            (quote, *(Evidence(m, "gpus.surroundings.files") for m in missing)),
            remedies_for("container-gpu-access"),
            cause="container-gpu-access",
            status="likely",
        )
    else:
        yield Finding(
            "cuda-cannot-start",
            Severity.BROKEN,
            f"a rank cannot start CUDA: {cuda.error.splitlines()[0]}",
            (quote,),
            gpu_health.remedies({"fix": ["cuda"]}),
        )


def _unusable_files(machine: Machine) -> list[str]:
    """Device files that CUDA needs and that are missing or cannot be opened,
    in words. WSL has /dev/dxg only."""
    if isinstance(machine.surroundings, Gap) or machine.surroundings.is_wsl:
        return []
    files = {f.path: f for f in machine.surroundings.files}
    denied = {"EPERM": "a device cgroup forbids access", "EACCES": "its file mode forbids access"}
    return [
        *(f"{path} is missing" for path in ("/dev/nvidiactl", "/dev/nvidia-uvm") if path not in files),
        *(
            f"{f.path} cannot be opened: {f.error} ({denied.get(f.error, f.mode)})"
            for f in files.values()
            if f.error not in ("", "not tried")
        ),
    ]


def cuda_misses_gpus(machine: Machine) -> Iterator[Finding]:
    """CUDA starts and counts fewer GPUs than NVML lists and the variable allows. MIG is judged separately."""
    nvml, cuda = machine.nvml, machine.cuda
    if (
        isinstance(nvml, Gap)
        or isinstance(cuda, Gap)
        or not cuda.cuda
        or cuda.error
        or gpu_health.with_mig(nvml)
    ):
        return
    selection = selection_of(machine)
    # those that NVML refuses have a rule of their own
    shown = [g for g in nvml.reached if not selection or g.nvml_index in selection.shown]
    if len(cuda.gpus) < len(shown) and not (selection and selection.problem):
        missing = [
            str(g.nvml_index)
            for g in shown
            if not isinstance(g.uuid, Gap) and g.nvml_index not in gpu_health.indices_by_cuda(machine)
        ]
        blocked = tuple(Evidence(b, "gpus.surroundings.files") for b in _unusable_files(machine))
        yield Finding(
            "cuda-misses-gpus",
            Severity.BROKEN,
            f"CUDA counts {len(cuda.gpus)} of the {len(shown)} GPUs that NVML lists"
            + (f"; GPU {', '.join(missing)} is missing" if missing else ""),
            (Evidence(f"a new rank sees {len(cuda.gpus)}", "gpus.cuda"), *blocked),
            *(
                (remedies_for("container-gpu-access"), "container-gpu-access", "likely")
                if blocked
                else (gpu_health.remedies({"fix": ["fewer"]}), "gpu-or-link-fault", "possible")
            ),
        )
