"""A trainer and an engine with a sync of their own, whose phases are known: python tests/own_sync_job.py RANK PORT BACKEND PAUSE GATHER
WIRE LOAD, seconds

Each names its phases by pause_trace() of nccl_guards.py as well, so that what sampled stacks say can be held against them.
"""
from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
import nccl_guards as guard  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

RANK, PORT, BACKEND, *SECONDS = sys.argv[1:]
PAUSE_S, GATHER_S, WIRE_S, LOAD_S = map(float, SECONDS)
SIDE: list[dist.ProcessGroup] = []


class Trainer:
    def __init__(self, device: torch.device) -> None:
        self.weight = torch.ones(1 << (30 if device.type == "cuda" else 24), dtype=torch.uint8, device=device)

    def pause_generation(self) -> None:
        time.sleep(PAUSE_S)

    def full_tensor(self) -> None:
        until = time.monotonic() + GATHER_S
        while time.monotonic() < until:
            self.weight.add_(0)
            wait(self.weight)

    def update_weights(self) -> None:
        with guard.pause_trace("own") as phase:
            self.pause_generation()
            phase("gather")
            self.full_tensor()
            phase("wire")
            until, going = time.monotonic() + WIRE_S, True
            while going:
                going = time.monotonic() < until
                self.weight[0] = int(going)
                broadcast(self.weight)
            phase("load")
            dist.recv(torch.zeros(1), 1, group=SIDE[0])


class Engine(Trainer):
    def update_weights(self) -> None:
        with guard.pause_trace("own") as phase:
            broadcast(self.weight)
            phase("wire")
            while self.weight[0].item():
                broadcast(self.weight)
            phase("load")
            self.load_weights()
            dist.send(torch.zeros(1), 0, group=SIDE[0])

    def load_weights(self) -> None:
        time.sleep(LOAD_S)


def broadcast(tensor: torch.Tensor) -> None:
    dist.broadcast(tensor, 0)
    wait(tensor)


def wait(tensor: torch.Tensor) -> None:
    """A stack shows where the host waits: what a GPU has left to do is counted wherever that is."""
    if tensor.is_cuda:
        torch.cuda.synchronize()


def main(rank: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT, RANK=RANK, WORLD_SIZE="2", GLOO_SOCKET_IFNAME="lo")
    device = torch.device("cuda", rank) if BACKEND == "nccl" else torch.device("cpu")
    if BACKEND == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(BACKEND)
    SIDE.append(dist.new_group(backend="gloo"))
    mine = (Engine if rank else Trainer)(device)
    broadcast(mine.weight)  # NCCL connects
    dist.barrier(group=SIDE[0])
    print("there", flush=True)
    sys.stdin.readline()
    mine.update_weights()
    threading.Event().wait(1.0)  # an end of the sync that stacks can show
    os._exit(0)


main(int(RANK))
