"""Ordinary jobs of three ranks (Gloo, or NCCL with ORDINARY_BACKEND) with one mistake each, as they were seen in accelerate 1.15,
transformers 5.24, Lightning 2.6 and DeepSpeed 0.19, with torch alone. A line with the mark HERE is where the look has to find the rank
at fault.

Run as a script it imports torch once and forks the ranks of each job that a line of its input names: FOLDER JOB.
Each rank writes its flight recorder to FOLDER/fr_rank_N once there is a file FOLDER/go.
"""
from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import live_worlds as worlds

SIZE = 3
TROUBLE = 3  # the step at which it happens


class Job:
    """One rank: a tiny model below DistributedDataParallel, as every one of these frameworks has it."""

    def __init__(self, rank: int, folder: Path) -> None:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        backend = os.environ.get("ORDINARY_BACKEND", "gloo")
        if backend == "nccl":
            torch.cuda.set_device(rank)
        dist.init_process_group(backend, timeout=worlds.TIMEOUT)
        self.torch, self.dist, self.rank, self.folder, self.steps_done = torch, dist, rank, folder, 0
        self.device = f"cuda:{rank}" if backend == "nccl" else "cpu"
        self.net = DistributedDataParallel(torch.nn.Linear(8, 1, device=self.device))

    def backward(self) -> Any:
        loss = self.net(self.torch.ones(4, 8, device=self.device)).sum()
        loss.backward()
        loss.item()  # as trainers do that print their loss
        self.steps_done += 1
        if self.steps_done == TROUBLE:
            (self.folder / f"ready-{self.rank}").touch()
        return loss.detach().reshape(1)

    def steps(self, count: int = 6) -> Iterator[tuple[int, Any]]:
        for step in range(count):
            yield step, self.backward()

    def gather(self, loss: Any) -> Any:
        losses = [self.torch.zeros(1, device=self.device) for _ in range(SIZE)]
        self.dist.all_gather(losses, loss)  # HERE
        return losses

    # --- a call that not all ranks make

    def gather_on_main(self) -> None:
        for step, loss in self.steps():
            if step == TROUBLE and self.rank == 0:
                print("mean", self.gather(loss))
        self.dist.barrier()

    def barrier_on_main(self) -> None:
        for step, _ in self.steps():
            if step == TROUBLE and self.rank == 0:
                self.torch.save(self.net.state_dict(), self.folder / "model.pt")
                self.dist.barrier()  # HERE

    def early_stop(self) -> None:
        for step, _ in self.steps():
            if step == TROUBLE and self.rank == 2:
                break
        self.dist.barrier()  # HERE

    def uneven(self) -> None:
        for _ in self.steps(6 if self.rank != 1 else 4):
            pass
        self.dist.barrier()  # HERE

    def caught(self) -> None:
        for step in range(6):
            with contextlib.suppress(ValueError):
                if step == TROUBLE and self.rank == 1:
                    raise ValueError("loss is nan")
                self.backward()
        self.dist.barrier()  # HERE

    def accumulation(self) -> None:
        every = 2 if self.rank != 2 else 3
        for step in range(12):
            with contextlib.nullcontext() if step % every == 0 else self.net.no_sync():
                self.backward()
        self.dist.barrier()  # HERE

    def subset(self) -> None:
        for step, _ in self.steps():
            if step == TROUBLE:
                names = ["checkpoint-3"]
                if self.rank != 2:
                    self.dist.broadcast_object_list(names, src=0)
                self.dist.barrier()  # HERE

    # --- a rank that is elsewhere

    def loader(self) -> None:
        """A row that cannot be read, in a process of the data loader."""
        for batch in self.torch.utils.data.DataLoader(Rows(self.rank), batch_size=2, num_workers=1):  # HERE
            assert len(batch)
            self.backward()

    def upload(self) -> None:
        for step, _ in self.steps():
            if step == TROUBLE and self.rank == 0:
                subprocess.run(["sleep", "300"], check=True)  # HERE

    def lock(self) -> None:
        """A file lock that a killed run left behind: tried again and again, as filelock does."""
        for step, _ in self.steps():
            if step == TROUBLE and self.rank == 0:
                with (self.folder / "lock").open("w") as first, (self.folder / "lock").open("w") as second:
                    fcntl.flock(first, fcntl.LOCK_EX)
                    acquire(second)

    def download(self) -> None:
        """A server that takes the request and never answers."""
        for step, _ in self.steps():
            if step == TROUBLE and self.rank == 0:
                with socket.create_server(("127.0.0.1", 0)) as server:
                    urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/weights").read()  # HERE

    def debugger(self) -> None:
        for step, _ in self.steps():
            if step == TROUBLE and self.rank == 0:
                breakpoint()  # HERE from Python 3.13 on, before at the next line
                print("resumed")  # HERE

    def stale_lock(self) -> None:
        """The lock of an extension whose build was killed: every rank waits for its end (torch/utils/file_baton.py)."""
        from torch.utils.file_baton import FileBaton

        for step, _ in self.steps():
            if step == TROUBLE:
                (self.folder / "lock").touch()
                FileBaton(str(self.folder / "lock")).wait()  # HERE

    def healthy(self) -> None:
        while True:
            self.backward()
            time.sleep(0.02)


def acquire(file: Any) -> None:
    while True:
        with contextlib.suppress(OSError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.05)  # HERE


class Rows:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> float:
        if index == 8 and self.rank == 1:
            read_row()
        return float(index)


def read_row() -> None:
    time.sleep(300)  # a mount that does not answer


# who is at fault
JOBS = {"gather_on_main": 0, "barrier_on_main": 0, "early_stop": 2, "uneven": 1, "caught": 1, "accumulation": 2, "subset": 2,
        "loader": 1, "upload": 0, "lock": 0, "download": 0, "debugger": 0, "stale_lock": None, "healthy": None}
MARKED = {"gather_on_main": Job.gather, "lock": acquire}  # where the mark is, if not in the job itself
ELSEWHERE = ("loader", "upload", "lock", "download", "debugger")


def dump_when_asked(folder: Path, rank: int) -> None:
    from torch._C import _distributed_c10d as recorder

    nccl = os.environ.get("ORDINARY_BACKEND") == "nccl"
    while not (folder / "go").exists():
        time.sleep(0.1)
    (folder / f".fr_{rank}").write_bytes(recorder._dump_nccl_trace() if nccl else recorder._dump_fr_trace())
    (folder / f".fr_{rank}").rename(folder / f"fr_rank_{rank}")


def start_rank(rank: int, port: int, job: str, folder: Path, keyboard: int) -> int:
    if pid := os.fork():
        return pid
    worlds.die_with_parent()
    for descriptor in (1, 2):
        os.dup2(os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    os.dup2(keyboard, 0)
    sys.stdin = open(0)
    worlds.pretend(
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(SIZE),
            "LOCAL_WORLD_SIZE": str(SIZE),
            "MASTER_PORT": str(port),
            "MASTER_ADDR": "127.0.0.1",
        }
    )
    one = Job(rank, folder)
    threading.Thread(target=dump_when_asked, args=(folder, rank), daemon=True).start()
    getattr(one, job)()
    os._exit(0)


def start(folder: Path, job: str) -> list[int]:
    port, (keyboard, _) = worlds.free_port(), os.pipe()
    return [start_rank(rank, port, job, folder, keyboard) for rank in range(SIZE)]


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401  (DistributedDataParallel imports it; the ranks have it from here)
    import torch.utils.data  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(start(Path(line.split()[0]), line.split()[1]) if len(line) > 3 else worlds.reap()), flush=True)
