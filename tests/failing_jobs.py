"""One rank of a job that ends in an error: `failing_jobs.py FAULT`, under torchrun or by itself. Gloo, or NCCL with FAILING_BACKEND.

Each fault is in the job or in its surroundings (SURROUNDINGS); what it prints is all that somebody gets to see of it.
"""
from __future__ import annotations

import datetime
import os
import signal
import sys
import time

# fault -> (ranks, what is set around it, causes that are right)
FAULTS = {
    "two-ranks-on-one-gpu": (2, {}, {"duplicate-gpu", "device-not-set-per-rank"}),
    "more-ranks-than-gpus": (2, {"CUDA_VISIBLE_DEVICES": "0"}, {"more-ranks-than-gpus"}),
    "memory": (1, {}, {"gpu-memory-exhausted"}),
    "interface": (1, {"NCCL_SOCKET_IFNAME": "eth99"}, {"socket-interface-wrong"}),
    "no-gpu": (1, {"CUDA_VISIBLE_DEVICES": ""}, {"visible-devices-wrong", "container-gpu-access"}),
    "no-such-gpu": (
        1,
        {"CUDA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000000"},
        {"visible-devices-wrong", "container-gpu-access"},
    ),
    "nvml": (1, {"SHIM": "1"}, {"nvml-call-failed"}),
    "network-plugin": (1, {"NCCL_NET": "nosuchnet"}, {"net-plugin-failed"}),
    "topology-file": (1, {"NCCL_TOPO_FILE": "BROKEN_TOPOLOGY"}, {"topology-file-bad"}),
    "killed": (2, {"FAILING_BACKEND": "gloo"}, {"peer-crashed"}),
    "gloo-interface": (2, {"FAILING_BACKEND": "gloo", "GLOO_SOCKET_IFNAME": "eth99"}, {"socket-interface-wrong"}),
    "port-in-use": (1, {"ALONE": "1", "MASTER_PORT": "TAKEN"}, {"rendezvous-port-in-use"}),
    "no-such-host": (1, {"ALONE": "1", "MASTER_ADDR": "head-node.invalid"}, {"rendezvous-name-resolution"}),
    "no-address": (1, {"ALONE": "1", "MASTER_ADDR": ""}, {"rendezvous-misconfigured", "rendezvous-name-resolution"}),
    "shapes-differ": (2, {"FAILING_BACKEND": "gloo", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, {"collective-mismatch"}),
    "rank-raises": (2, {"FAILING_BACKEND": "gloo"}, {"peer-crashed"}),
}
# a log cannot tell whether the program, the scheduler or a list of devices chose that GPU
SEVERAL = ("two-ranks-on-one-gpu", "more-ranks-than-gpus")


def main(fault: str) -> None:
    import torch
    import torch.distributed as dist

    backend, rank = os.environ.get("FAILING_BACKEND", "nccl"), int(os.environ["RANK"])
    device = "cpu"
    if backend == "nccl":
        torch.cuda.set_device(0 if fault == "two-ranks-on-one-gpu" else int(os.environ["LOCAL_RANK"]))
        device = "cuda"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=20))
    ones = torch.ones(1 << 10, device=device)
    dist.all_reduce(ones)
    if fault == "memory":
        kept = [torch.empty(1 << 34, dtype=torch.uint8, device=device) for _ in range(64)]
        dist.all_reduce(kept[0])
    if fault == "killed" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "rank-raises" and rank == 1:
        raise FileNotFoundError("shard-00001-of-00002.parquet")
    dist.all_reduce(torch.ones(2 + (rank if fault == "shapes-differ" else 0), device=device))
    time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
