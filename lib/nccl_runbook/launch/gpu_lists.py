"""Lists of GPUs as options name them, and the devices of ranks."""

import glob
import re
from typing import Dict, List, Optional, Tuple, Union

from nccl_runbook.core.facts import Gap, Unusable

REHEARSAL_RANKS = 2  # on the CPU, over Gloo
REHEARSAL_MOST = 64  # a larger number would only burden other users of this machine


def parse_gpus(text: str, count: int) -> List[int]:
    """One cuda_index a rank: "" for all, "0,1", "0-3"; the same index twice puts two ranks on one GPU.
    ValueError names the wrong part and the GPUs that exist."""
    ranges = gpu_ranges(text) or [(0, count - 1)]
    outside = [max(first, count) for first, last in ranges if last >= count]
    if outside:
        raise Unusable(
            f"gpus: there is no GPU {outside[0]}, only {count} GPUs (0-{count - 1})"
            if count
            else f"gpus: there is no GPU {outside[0]}, because this machine shows no NVIDIA GPU. Run "
            "without this option to see why, and to rehearse on the CPU"
        )
    return [g for first, last in ranges for g in range(first, last + 1)]


def gpu_ranges(text: str) -> List[Tuple[int, int]]:
    """First and last index of every part of "0,2-3"; empty for all GPUs. Does not check that they exist.
    ValueError names the wrong part."""
    ranges: List[Tuple[int, int]] = []
    for part in [] if text.strip() in ("", "all") else text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise Unusable(
                f"gpus: {part.strip()!r} "
                f"{'begins above its end' if match else 'is not a GPU index or is too large'}; "
                "write all, 0,1 or 0-3"
            )
        ranges.append((first, last))
    return ranges


def present(prefix: str = "") -> Optional[int]:
    """The number of GPUs of this machine, by the device files of the driver; None if that is unknown: WSL and
    Tegra have no such files. ``prefix``: the judged interpreter; behind docker exec or srun the machine is
    another one."""
    unknown = len(prefix.split()) > 1 or glob.glob("/dev/dxg") + glob.glob("/dev/nvgpu*")
    return None if unknown else len(glob.glob("/dev/nvidia[0-9]*"))


def check_present(gpus: str, prefix: str = "") -> None:
    """ValueError if ``gpus`` is no list of GPUs, or names one that this machine lacks. ``prefix``: see
    present."""
    count = present(prefix)
    if gpu_ranges(gpus) and count is not None:
        parse_gpus(gpus, count)


def rank_devices(gpus: str, max_ranks: int, cuda_count: Union[int, Gap]) -> List[Optional[int]]:
    """One device a rank; two ranks on the CPU (None, None) if CUDA shows no device. ``max_ranks`` 0: no
    limit. ValueError as in parse_gpus."""
    gpu_ranges(gpus)
    if isinstance(cuda_count, Gap) or cuda_count == 0:
        return [None] * min(max_ranks or REHEARSAL_RANKS, REHEARSAL_MOST)
    return [*parse_gpus(gpus, cuda_count)][: max_ranks or None]


def device_arguments(
    devices: List[Optional[int]], visible: Optional[str]
) -> Tuple[Dict[str, str], List[str]]:
    """The narrowed CUDA_VISIBLE_DEVICES and the ``--devices`` argument of these ranks. ``visible``: the
    variable as it is set now. As under torchrun every rank sees the same GPUs and picks its own. An index
    that the variable does not name is kept, so that CUDA reports the error."""
    chosen = [d for d in devices if d is not None]
    if not chosen:
        return {}, []
    unique = sorted(set(chosen), key=chosen.index)
    tokens = [t.strip() for t in visible.split(",")] if visible is not None else None
    if tokens is not None and max(unique) >= len(tokens):
        return {}, ["--devices", ",".join(map(str, chosen))]
    return {"CUDA_VISIBLE_DEVICES": ",".join(tokens[d] if tokens is not None else str(d) for d in unique)}, [
        "--devices",
        ",".join(str(unique.index(d)) for d in chosen),
    ]
