"""What is there: GPUs as NVML, the device files and CUDA in a fresh rank each tell them."""
from __future__ import annotations

from typing import Any, Dict, Union

from nccl_runbook.facts import Gap
from nccl_runbook.facts.machine import CudaGpu, CudaView, DeviceFile, Machine, Surroundings, from_json
from nccl_runbook.facts.world import RankResult, WorldRequest
from nccl_runbook.probes import nvml

RANK_DEADLINE_S = 60.0


def collect(engine: Any) -> Machine:
    """The three views. ``engine``: a launch Engine; it runs ranks/view.py as one rank that keeps CUDA_VISIBLE_DEVICES as it is."""
    world = engine.run(WorldRequest("what CUDA sees", "view.py", [None], deadline_s=RANK_DEADLINE_S))
    return Machine(nvml.view(), surroundings_of(world.ranks[0]), cuda_of(world.ranks[0]))


def _said(rank: RankResult, event: str) -> Union[Dict[str, Any], Gap]:
    """The fields of the rank's event, or why it did not come to that."""
    found = rank.first(event)
    if found is not None:
        return {k: v for k, v in found.items() if k != "event"}
    no_torch = rank.first("no_torch")
    if no_torch:
        return Gap("absent", no_torch["error"])
    last = " | ".join(rank.last_lines[-3:])
    return Gap("timed-out" if rank.outcome == "timed-out" else "failed", f"the rank {rank.outcome} ({rank.code}) {last}".strip())


def surroundings_of(rank: RankResult) -> Union[Surroundings, Gap]:
    said = _said(rank, "surroundings")
    return said if isinstance(said, Gap) else from_json(Surroundings, said, files=lambda fs: [DeviceFile(**f) for f in fs])


def cuda_of(rank: RankResult) -> Union[CudaView, Gap]:
    said = _said(rank, "cuda")
    return said if isinstance(said, Gap) else from_json(CudaView, said, gpus=lambda gs: [CudaGpu(**g) for g in gs])
