"""One rank of a world that meets every guard, failures included. Prints what it raised, and what a call costs."""
from __future__ import annotations

import json
import os
import statistics
import time

import nccl_guards as guard
import torch
import torch.distributed as dist


def tried(name: str, act) -> None:
    try:
        act()
        print(f"TRIED {name} passed", flush=True)
    except guard.GuardError as error:
        print(f"TRIED {name} raised {error}", flush=True)


def costs() -> None:
    """Medians of seconds over steps of 20 ms, the three in turn: the calling thread's own time in the plain call and in the one that
    does not wait, and how much longer than one bare exchange over the same group the plain call takes."""
    counts, sent = {"minibatches": (16, 8), "steps": 3}, torch.zeros(dist.get_world_size(), dtype=torch.int64)
    took: dict[str, list[float]] = {"plain": [], "beside": [], "wall": [], "bare": []}
    for _ in range(40):
        time.sleep(0.02)
        clock, cpu = time.perf_counter(), time.thread_time()
        guard.check_minibatches(**counts)
        took["wall"].append(time.perf_counter() - clock)
        took["plain"].append(time.thread_time() - cpu)
        cpu = time.thread_time()
        agreed = guard.check_minibatches(**counts, wait=False)
        spent = time.thread_time() - cpu
        time.sleep(0.02)
        cpu = time.thread_time()
        agreed()
        took["beside"].append(spent + time.thread_time() - cpu)
        clock = time.perf_counter()
        dist.all_to_all_single(torch.empty_like(sent), sent, group=guard._side())
        took["bare"].append(time.perf_counter() - clock)
    print("COST " + json.dumps({name: statistics.median(seconds) for name, seconds in took.items()}), flush=True)


def main() -> None:
    guard.enable_flight_recorder("dumps")
    guard.init_process_group_checked("gloo", timeout_s=123)
    rank, gradient = dist.get_rank(), torch.ones(1000)
    guard.check_device_map()
    guard.sync_clock()
    tried("same", lambda: [guard.check_agreement(gradient, "all_reduce") for _ in range(3)])
    with guard.pause_trace() as phase:
        phase("gather")
        time.sleep(0.02)
        phase("wire")
    with guard.pause_trace("a framework's own sync"):
        time.sleep(0.01)
    weights = [("a", torch.arange(3000.0)), ("b", torch.ones(7, dtype=torch.bfloat16))]
    tried("digest", lambda: guard.weights_digest(weights))
    guard.check_minibatches(minibatches=(16, 8), steps=3)
    costs()
    tried("dtype", lambda: guard.check_agreement(gradient.half() if rank == 2 else gradient, "all_reduce"))
    tried("size", lambda: guard.check_agreement(gradient[:999] if rank == 1 else gradient, "all_reduce"))
    tried("op", lambda: guard.check_agreement(gradient, "broadcast" if rank == 3 else "all_reduce"))
    tried("none", lambda: guard.check_minibatches(minibatches=(5 if rank == 3 else 16, 8)))
    tried("uneven", lambda: guard.check_minibatches(steps=11 if rank == 0 else 12))
    tried("zero everywhere", lambda: guard.check_minibatches(steps=0))
    weights[0][1][17] += rank == 1
    tried("weights", lambda: guard.weights_digest(weights))
    tried("elsewhere", lambda: guard.check_minibatches(steps=4) if rank == 1 else guard.check_agreement(gradient, "all_reduce"))
    tried("late", guard.enable_flight_recorder)
    guard.LIMIT_S, guard.REPORT_S, guard._state["of"] = 2.0, 0.5, None  # a new side channel, so that nobody waits 30 s here
    guard.check_minibatches(steps=4)
    if rank == 2:
        time.sleep(5.0)
    else:
        tried("absent", lambda: guard.check_minibatches(steps=4))
        time.sleep(2.0)  # rank 0 holds the store, which the others still ask
    os._exit(0)


main()
