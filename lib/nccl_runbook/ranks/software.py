"""A rank that says which software it runs: torch, CUDA, NCCL, and how many devices CUDA shows it."""

import json
import os
import sys

import torch


def emit(event):
    """One JSON line for whoever started this rank, else for the reader."""
    fd = os.environ.get("NCCL_RUNBOOK_EVENT_FD")
    line = json.dumps(event) + "\n"
    if fd:
        os.write(int(fd), line.encode())
    else:
        sys.stdout.write(line)


def nccl_version():
    """ "2.28.9", or "" for a torch without NCCL."""
    if not torch.distributed.is_nccl_available():
        return ""
    version = torch.cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def device_count():
    """What CUDA counts. torch 2.11's device_count() asks NVML first and hides errors as 0, so CUDA itself is initialised here."""
    if not torch.backends.cuda.is_built():
        return {"device_count": 0, "device_count_note": "this torch is a CPU build"}
    try:
        torch.cuda.init()
        count = torch.cuda.device_count()
        return {"device_count": count, "devices": [torch.cuda.get_device_name(i) for i in range(count)]}
    except RuntimeError as error:
        return {"device_count_error": str(error).splitlines()[0]}


if __name__ == "__main__":
    emit({"event": "software", "torch": torch.__version__, "cuda": torch.version.cuda or "", "nccl": nccl_version(), **device_count()})
