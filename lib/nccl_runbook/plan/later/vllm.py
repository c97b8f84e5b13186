"""vLLM with a weight-transfer configuration: its engines alone; the trainer is a program of the reader's.

docs/training/weight_transfer/nccl.md and the API pages of vLLM 0.29.0."""

import math
import re

from nccl_runbook.plan.allocation.flags import Launch
from nccl_runbook.plan.areal import part
from nccl_runbook.plan.groups import Pool, Shape, that_apply

_SHORT = re.compile(r"(?:^|\s)-(?:tp|pp|dp)\b")


def shape(launch: Launch) -> Shape:
    """What a vLLM server starts. ValueError for short flags, which are not read."""
    if _SHORT.search(launch.text):
        raise ValueError(
            "this plan does not read -tp, -pp and -dp. Write --tensor-parallel-size and the other long names"
        )
    tensor = math.prod(max(1, launch.number(way)) for way in ("tensor", "pipeline"))
    data = max(1, launch.number("data"))
    ranks, named = tensor * data, re.search(r"backend\W+(\w+)", launch.value("transfer"))
    backend = named[1] if named else "nccl"
    notes = that_apply(
        (
            "nccl" in backend,
            f"the trainer is rank 0 of an NCCL group of {ranks + 1}, on a GPU of its own; the "
            f"{ranks} workers start at rank_offset 1",
        ),
        (
            backend == "ipc",
            f"the trainer runs on the same {ranks} GPUs as the workers, because with vLLM's IPC backend, "
            "each worker reads only the handles for its own GPU",
        ),
        (True, "this plan contains only the engines, because their trainer is another program"),
    )
    return Shape([part("engine", "vllm", "vllm", data, tensor)], [Pool(1, ranks)], backend, notes)
