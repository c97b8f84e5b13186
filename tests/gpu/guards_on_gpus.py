"""One rank: every guard on GPUs, and what check_minibatches adds to a step of 50 ms. Prints, and ends with 1 where a guard stayed quiet.

    python -m torch.distributed.run --standalone --nproc-per-node 2 tests/gpu/guards_on_gpus.py
"""
from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lib"))
import nccl_guards as guard  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def main() -> None:
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    guard.enable_flight_recorder()
    guard.init_process_group_checked(backend, device_id=backend == "nccl")
    rank, device = dist.get_rank(), "cuda" if backend == "nccl" else "cpu"
    guard.check_device_map()
    guard.sync_clock()
    gradient = torch.ones(1000, device=device)
    guard.check_agreement(gradient, "all_reduce")
    layers = [(str(i), torch.ones(1 << (26 if backend == "nccl" else 16), dtype=torch.bfloat16, device=device)) for i in range(4)]
    for _ in range(2):
        began = time.perf_counter()
        guard.weights_digest(layers)
        print(f"rank {rank}: digest of {sum(t.numel() * 2 for _, t in layers)} bytes in {time.perf_counter() - began:.3f} s", flush=True)
    last, fired = dist.get_world_size() - 1, 0
    for act in (lambda: guard.check_agreement(gradient.half() if rank == last else gradient, "all_reduce"),
                lambda: guard.check_minibatches(minibatches=(5 if rank == last else 16, 8))):
        try:
            act()
        except guard.GuardError as error:
            fired += 1
            print(f"rank {rank}: {error}", flush=True)
    guard.check_minibatches(minibatches=(16, 8))
    took: dict[str, list[float]] = {"without": [], "waiting": [], "beside": []}
    for number in range(120):
        began, kind = time.perf_counter(), list(took)[number % 3]
        agreed = guard.check_minibatches(minibatches=(16, 8), wait=kind == "waiting") if kind != "without" else None
        time.sleep(0.05)
        if agreed:
            agreed()
        dist.all_reduce(gradient)
        gradient.fill_(1)[0].item()
        took[kind].append(time.perf_counter() - began)
    step = {kind: 1e3 * statistics.median(each) for kind, each in took.items()}
    more = {kind: f"{100 * (ms / step['without'] - 1):+.2f} %" for kind, ms in step.items()}
    print(f"rank {rank}: milliseconds a step {step}: {more}; {fired} of 2 guards fired", flush=True)
    os._exit(fired != 2)


main()
