"""Do NVML, the device files and CUDA name the same GPUs, and if not, which variable or limit does it."""

from collections.abc import Callable, Iterator

from nccl_runbook.core.facts import Gap, counted
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.gpus import judge_health as gpu_health
from nccl_runbook.gpus.judge_cuda import cuda_cannot_start, cuda_misses_gpus, selection_of, torch_without_cuda
from nccl_runbook.gpus.judge_nvml import (
    cuda_count,
    no_gpu_anywhere,
    nvml_gpus,
    nvml_refuses,
    nvml_refuses_a_gpu,
)
from nccl_runbook.machine.facts import Machine
from nccl_runbook.machine.visible_devices import Selection, granted_by

RESTS_ON = ("gpus", "gpus.nvml", "gpus.cuda", "gpus.surroundings")


def _clear_lines(machine: Machine) -> tuple[str, ...]:
    readable = ",".join(str(g.nvml_index) for g in gpu_health.reached(machine))
    return "unset CUDA_VISIBLE_DEVICES", f"export CUDA_VISIBLE_DEVICES={readable}"


def visible_devices_wrong(machine: Machine) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES names a missing GPU, repeats one, has a typo, or hides all."""
    selection = selection_of(machine)
    if selection and selection.problem and not isinstance(machine.surroundings, Gap):
        value = machine.surroundings.variables["CUDA_VISIBLE_DEVICES"]
        yield Finding(
            "visible-devices-wrong",
            Severity.BROKEN,
            f"CUDA_VISIBLE_DEVICES={value}: {selection.problem}",
            (
                Evidence(f"CUDA_VISIBLE_DEVICES={value}", "gpus.surroundings.variables"),
                Evidence(f"NVML lists {len(nvml_gpus(machine))} GPUs", "gpus.nvml"),
                Evidence(f"a new rank sees {cuda_count(machine)} GPUs", "gpus.cuda"),
            ),
            (
                Remedy(
                    "your launcher",
                    "Unset CUDA_VISIBLE_DEVICES, or name GPUs that exist. If a scheduler set the "
                    "variable, request GPUs from the scheduler.",
                    _clear_lines(machine),
                ),
            ),
            cause="visible-devices-wrong",
            status="established",
        )


def gpus_hidden(machine: Machine) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES hides some GPUs; only a note if the scheduler's variable grants exactly the
    rest."""
    selection = selection_of(machine)
    hidden = _hidden(machine, selection) if selection and not selection.problem else []
    if selection and hidden and not isinstance(machine.surroundings, Gap):
        variables = machine.surroundings.variables
        setting = f"CUDA_VISIBLE_DEVICES={variables['CUDA_VISIBLE_DEVICES']}"
        title = (
            f"{setting} hides GPU {', '.join(map(str, hidden))} of the host's {len(nvml_gpus(machine))} GPUs"
        )
        evidence = (Evidence(setting, "gpus.surroundings.variables"),)
        if grant := granted_by(variables, selection.shown, nvml_gpus(machine)):
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
                        "If the job should also use the hidden GPUs, unset CUDA_VISIBLE_DEVICES.",
                        _clear_lines(machine),
                    ),
                ),
                cause="visible-devices-wrong",
                status="possible",
            )


def _hidden(machine: Machine, selection: Selection) -> list[int]:
    """nvml_index of each GPU that CUDA does not show. CUDA's own UUIDs decide if there are any: its order
    may differ from NVML's."""
    indices = gpu_health.indices_by_cuda(machine)
    shown = selection.shown if len(indices) != len(selection.shown) or None in indices else indices
    return [i for i in range(len(nvml_gpus(machine))) if i not in shown]


def indices_differ(machine: Machine) -> Iterator[Finding]:
    """CUDA numbers the GPUs in a different order from nvidia-smi: fastest first, unless
    CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    indices = gpu_health.indices_by_cuda(machine)
    in_order = sorted(i for i in indices if i is not None)
    if selection_of(machine) is None and None not in indices and indices != in_order:
        yield Finding(
            "indices-differ",
            Severity.NOTE,
            "CUDA numbers the GPUs in a different order from nvidia-smi",
            (
                Evidence(
                    ", ".join(f"CUDA device {c} is nvidia-smi's GPU {i}" for c, i in enumerate(indices)),
                    "gpus.cuda",
                ),
            ),
            (
                Remedy(
                    "your launcher",
                    "To let CUDA use the order of nvidia-smi:",
                    ("export CUDA_DEVICE_ORDER=PCI_BUS_ID",),
                ),
            ),
        )


def views_agree(machine: Machine) -> Iterator[Finding]:
    """What is right; yielded only if all three views exist and CUDA counts the expected GPUs."""
    nvml, cuda = machine.nvml, machine.cuda
    if (
        not isinstance(nvml, Gap)
        and not isinstance(cuda, Gap)
        and not isinstance(machine.surroundings, Gap)
        and cuda.gpus
        and not cuda.error
    ):
        yield Finding(
            "views-agree",
            Severity.OK,
            f"NVML lists {counted(len(nvml.gpus), 'GPU')}, and a new rank can use "
            f"{counted(len(cuda.gpus), 'GPU')} ({', '.join(sorted({g.name for g in cuda.gpus}))}). No fault "
            "counter, link or clock looks unusual",
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


def judge_gpus(machine: Machine | Gap) -> list[Finding]:
    """All findings of the three views and the health fields. Empty if there is nothing to judge: the step is
    then unknown."""
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
    findings = [f for rule in RULES for f in rule(machine)]
    return (
        [*findings, *views_agree(machine)]
        if all(f.severity in (Severity.NOTE, Severity.OK) for f in findings)
        else findings
    )
