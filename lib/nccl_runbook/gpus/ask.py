"""What is there: GPUs as NVML, the device files and CUDA in a fresh rank each tell them."""
from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Dict, Optional, Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.world import RankResult, WorldRequest
from nccl_runbook.launch.warm_link import source_of
from nccl_runbook.machine import ask_nvml as nvml
from nccl_runbook.machine.facts import CudaGpu, CudaView, DeviceFile, Machine, Surroundings, from_json

RANK_DEADLINE_S = 60.0


def collect(engine: Optional[Any]) -> Machine:
    """The three views. ``engine``: a launch Engine; it runs ranks/view.py as one rank that keeps CUDA_VISIBLE_DEVICES as it is.
    None where this interpreter cannot run ranks: then view.py tells what it can without."""
    request = WorldRequest("what CUDA sees", "view.py", [None], deadline_s=RANK_DEADLINE_S)
    rank = engine.run(request).ranks[0] if engine else _alone(request)
    return Machine(nvml.view(), surroundings_of(rank), cuda_of(rank))


def _alone(request: WorldRequest) -> RankResult:
    """The same file under this interpreter, over standard input."""
    try:
        source = source_of(f"nccl_runbook/ranks/{request.entry}")
        done = subprocess.run([sys.executable, "-"], input=source, capture_output=True, timeout=request.deadline_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        return RankResult(0, "lost" if isinstance(error, OSError) else "timed-out", last_lines=[str(error)])
    return RankResult(
        0, "exited", done.returncode,
        events=[json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")],
        last_lines=done.stderr.decode("utf-8", "replace").splitlines())


def _said(rank: RankResult, event: str) -> Union[Dict[str, Any], Gap]:
    """The fields of the rank's event, or why it did not come to that."""
    found = rank.first(event)
    if found is not None:
        return {k: v for k, v in found.items() if k != "event"}
    no_torch = rank.first("no_torch")
    return Gap("absent", no_torch["error"]) if no_torch else rank.why_silent()


def surroundings_of(rank: RankResult) -> Union[Surroundings, Gap]:
    said = _said(rank, "surroundings")
    return said if isinstance(said, Gap) else from_json(Surroundings, said, files=lambda fs: [DeviceFile(**f) for f in fs])


def cuda_of(rank: RankResult) -> Union[CudaView, Gap]:
    said = _said(rank, "cuda")
    return said if isinstance(said, Gap) else from_json(CudaView, said, gpus=lambda gs: [CudaGpu(**g) for g in gs])
