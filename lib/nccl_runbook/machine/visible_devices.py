"""CUDA_VISIBLE_DEVICES and what schedulers grant, read against the GPUs that NVML lists."""

import dataclasses
import difflib
import re
from collections.abc import Sequence

from nccl_runbook.core.facts import Gap
from nccl_runbook.machine.facts import NvmlGpu


@dataclasses.dataclass(frozen=True)
class Selection:
    """GPUs that a process may see. ``shown``: nvml_index of each, in order; ``problem``: what is wrong with
    the value, else empty."""

    shown: tuple[int, ...]
    problem: str = ""


def _selected(entry: str, gpus: Sequence[NvmlGpu | Gap]) -> tuple[str, int] | str:
    """Identity and nvml_index of the GPU that an entry names, or what is wrong with it.
    UUIDs may be shortened if unambiguous."""
    if re.fullmatch(r"\+?\d+", entry):
        index = int(entry)
        return (
            (f"#{index}", index)
            if index < len(gpus)
            else f"GPU {entry} does not exist, because this machine has {len(gpus)} GPUs, counted from 0"
        )
    known = {
        uuid: gpu.nvml_index
        for gpu in gpus
        if not isinstance(gpu, Gap) and not isinstance(gpu.uuid, Gap)
        for uuid in [
            gpu.uuid,
            *(i.uuid for i in ([] if isinstance(gpu.mig, Gap) else gpu.mig.instances) if i.uuid),
        ]
    }
    matches = [uuid for uuid in known if uuid.lower().startswith(entry.lower())]
    if entry.upper().startswith(("GPU-", "MIG-")) and len(matches) == 1:
        return (f"#{known[matches[0]]}" if entry.upper().startswith("GPU-") else matches[0]), known[
            matches[0]
        ]
    if len(matches) > 1:
        return f"{entry!r} matches {len(matches)} GPUs"
    near = difflib.get_close_matches(entry, known, 1, cutoff=0.8)
    return f"{entry!r} does not name a GPU" + (f"; did you mean {near[0]}?" if near else "")


def read_selection(value: str, gpus: Sequence[NvmlGpu | Gap]) -> Selection:
    """How CUDA reads ``value`` (CUDA C++ Programming Guide 13.0, CUDA Environment Variables; torch 2.13
    `_parse_visible_devices`): entries count up to the first that names no GPU, a repeated one hides all.
    ``gpus``: as NVML lists them, a Gap for one that it cannot."""
    if value.strip() in ("", "NoDevFiles", "-1", "none", "void"):  # NoDevFiles: Slurm, a step without GPUs
        return Selection((), f"{value.strip()!r} hides every GPU")
    named: dict[str, int] = {}
    for entry in (e.strip() for e in value.split(",")):
        gpu = _selected(entry, gpus)
        if isinstance(gpu, str):
            return Selection(tuple(named.values()), gpu + "; CUDA ignores this entry and all later entries")
        if gpu[0] in named:
            return Selection((), f"{entry} is named twice, so CUDA shows no GPU")
        named[gpu[0]] = gpu[1]
    return Selection(tuple(dict.fromkeys(named.values())))


def granted_by(variables: dict[str, str], shown: Sequence[int], gpus: Sequence[NvmlGpu | Gap]) -> str:
    """Name and value of the scheduler's variable that grants exactly these GPUs; empty if none does."""
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "NVIDIA_VISIBLE_DEVICES"):
        spread = (
            re.sub(
                r"(?<!\d)(\d+)-(\d+)(?=,|$)",
                lambda m: ",".join(map(str, range(int(m[1]), min(int(m[2]), int(m[1]) + 255) + 1))),
                variables.get(name, ""),
            )
            if re.fullmatch(r"[\d,\- ]*", variables.get(name, ""))
            else variables[name]
        )
        grant = read_selection(spread, gpus)
        if spread and not grant.problem and set(grant.shown) == set(shown):
            return f"{name}={variables[name]}"
    return ""
