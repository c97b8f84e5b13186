"""Hung jobs of real Gloo ranks, for tests of the live look. The injector chooses who is at fault and writes that to a file which only
the test reads, once the look has been judged.

Run as a script it is a launcher that imports torch once and forks ranks; each rank overwrites its copy of the environment that the
kernel shows in /proc/PID/environ, so that it looks like a rank that was started with it.
"""
from __future__ import annotations

import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

FAULTS = {
    "skip": "skipped",
    "sigstop": "stopped",
    "sigkill": "dead",
    "exception": "dead",
    "gil": "gil-held",
    "straggler": "slow",
    "checkpoint": "host-busy",
    "loop": "host-busy",
    "never-joins": "dead",
    "world-size": "mismatch",
    "port-held": "dead",
    "dropped": "unreachable",
    "other-collective": "skipped",
    "swap": "skipped",
    "send": "skipped",
    "oom": "dead",
    "healthy": "healthy",
}
ON_GPUS = {
    "training": "healthy",
    "spin": "gpu-stuck",
    **{fault: kind for fault, kind in FAULTS.items() if fault not in ("other-collective", "swap", "send")},
}
PLACES = {"RANK": 3, "LOCAL_RANK": 3, "WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3, "MASTER_PORT": 5, "MASTER_ADDR": 9}
TIMEOUT = timedelta(seconds=300)


# --- the test's side

@contextmanager
def launcher(python: str = sys.executable, script: str = __file__, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A launcher that has torch; everything below it dies with it."""
    env = {
        **os.environ,
        **{name: "?" * width for name, width in PLACES.items()},
        "OMP_NUM_THREADS": "1",
        "WANDB_API_KEY": "canary-0123456789",
        **more,
    }
    running = subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        running.stdin.close()
        running.stdout.close()


def start(running: subprocess.Popen[str], folder: Path, fault: str, world_size: int = 4, backend: str = "gloo") -> list[int]:
    """A world with that fault, once the fault is there: the pids of its ranks. Who is at fault stands in ``truth.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    running.stdin.write(json.dumps({"folder": str(folder), "fault": fault, "world_size": world_size, "backend": backend}) + "\n")
    running.stdin.flush()
    return json.loads(running.stdout.readline())


def end(running: subprocess.Popen[str]) -> None:
    """The launcher ends and waits for every rank that it has, so that the next world finds no traces."""
    running.stdin.write("{}\n")
    running.stdin.flush()
    assert running.stdout.readline() == "[]\n"


# --- the launcher's side

def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def pretend(variables: dict[str, str]) -> None:
    """These variables, also where the kernel looks: their places in the block that this process was started with are overwritten."""
    os.environ.update(variables)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[47]), int(fields[48])  # env_start and env_end, fields 50 and 51 of proc(5)
    block = ctypes.string_at(begin, end - begin)
    for name, value in variables.items():
        place = re.search(rb"(?:^|\0)" + name.encode() + rb"=(\?+)", block)
        ctypes.memmove(begin + place.start(1), value.zfill(PLACES[name]).encode() if value.isdecimal() else value.encode(), len(place[1]))


def launch(request: dict[str, Any]) -> list[int]:
    fault, size, folder = request["fault"], request["world_size"], Path(request["folder"])
    culprit = 0 if fault in ("checkpoint", "port-held") else random.SystemRandom().randrange(size)
    os.environ["LIVE_BACKEND"] = request["backend"]
    if fault in ("dropped", "sigkill", "exception", "oom"):  # rank 0 holds the store
        culprit = random.SystemRandom().randrange(1, size)
    (folder / "truth.json").write_text(
        json.dumps({"culprits": [] if fault in ("healthy", "training") else [culprit], "kind": {**FAULTS, **ON_GPUS}[fault]})
    )
    port = free_port()
    if fault in ("port-held", "dropped"):
        beside({"port-held": hold, "dropped": full}[fault], port)
    pids = [
        fork(rank, size, port, fault, rank == culprit, folder) for rank in range(size) if not (fault == "never-joins" and rank == culprit)
    ]
    wait_for(folder, size - 1 if fault in ("never-joins", "port-held") else size)
    if fault == "sigstop":
        os.kill(pids[culprit], signal.SIGSTOP)
    if fault == "sigkill":
        os.kill(pids[culprit], signal.SIGKILL)
    return pids


def reap() -> list[int]:
    for pid in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return []


def wait_for(folder: Path, count: int) -> None:
    until = time.monotonic() + 60
    while len(list(folder.glob("ready-*"))) < count:
        if time.monotonic() > until:
            ends = {p.name: p.read_text(errors="replace")[-600:] for p in sorted(folder.iterdir()) if p.is_file()}
            raise TimeoutError(f"{folder}: {ends}")
        time.sleep(0.05)


def beside(act: Callable[[int], list[socket.socket]], port: int) -> None:
    """Another program, which holds those sockets."""
    if os.fork() == 0:
        die_with_parent()
        kept = act(port)
        while kept:
            time.sleep(300)
    time.sleep(0.2)


def hold(port: int) -> list[socket.socket]:
    return [socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)]


def full(port: int) -> list[socket.socket]:
    """A listener on 127.0.0.2 whose queue is full: the kernel drops what asks it for a connection, as a firewall does."""
    listener = socket.socket()
    listener.bind(("127.0.0.2", port))
    listener.listen(0)
    waiting = [socket.socket() for _ in range(4)]
    for one in waiting:
        one.setblocking(False)
        one.connect_ex(("127.0.0.2", port))
    return [listener, *waiting]


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))  # PR_SET_PTRACER, anybody of this user: where Yama lets only parents look


def fork(rank: int, size: int, port: int, fault: str, guilty: bool, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    die_with_parent()
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.write(2, f"key {os.environ['WANDB_API_KEY']}\n".encode())
    odd_size = size + 1 if fault == "world-size" and guilty else size
    pretend(
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(odd_size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_PORT": str(port),
            "MASTER_ADDR": "127.0.0.2" if fault == "dropped" and guilty else "127.0.0.1",
        }
    )
    try:
        train(
            (
                fault
                if guilty
                or fault in (
                    "sigkill",
                    "exception",
                    "oom",
                    "swap",
                    "straggler",
                    "healthy",
                    "training",
                    "never-joins",
                    "world-size",
                    "port-held",
                    "dropped",
                    "sigstop",
                )
                else ""
            ),
            guilty,
            folder / f"ready-{rank}",
        )
        os._exit(0)
    except (RuntimeError, ValueError):
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


# --- the rank's side: a small training loop

def save_checkpoint(folder: Path) -> None:
    import torch

    weights = {f"layer{i}": torch.ones(1 << 18) for i in range(8)}
    until = time.monotonic() + 120
    while time.monotonic() < until:
        torch.save(weights, folder / "checkpoint.pt")


def wait_for_request() -> None:
    time.sleep(300)


def tokenize() -> None:
    words: dict[str, int] = {}
    while True:
        text = " ".join(map(str, range(3000)))
        pairs = [text[i:i + 2] for i in range(len(text))]
        for pair in pairs:
            words[pair] = words.get(pair, 0) + 1
        order = sorted(words, key=lambda w: -words[w])
        ids = {w: i for i, w in enumerate(order)}
        pairs = ["".join(reversed(p)) for p in pairs if p in ids]


def match_forever() -> None:
    re.match(r"(a?){60}a{60}", "a" * 60)


def loopback_store() -> Any:
    """The store on 127.0.0.1 alone, so that the same port of 127.0.0.2 is free for another."""
    import torch.distributed as dist

    port, size = int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"])
    listener = socket.create_server(("127.0.0.1", port))
    return dist.PrefixStore("default_pg", dist.TCPStore("127.0.0.1", port, size, True, TIMEOUT, False, master_listen_fd=listener.detach()))


def train(fault: str, guilty: bool, ready: Path) -> None:
    """With NCCL each step ends with a value that the host reads."""
    import torch
    import torch.distributed as dist

    if fault in ("world-size", "port-held", "dropped", "never-joins"):
        ready.touch()
    backend, rank, size = os.environ["LIVE_BACKEND"], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    time.sleep(float(os.environ.get("LIVE_START_S", "0")))
    if fault == "dropped" and not rank:
        dist.init_process_group(backend, timeout=TIMEOUT, store=loopback_store(), rank=0, world_size=size)
    else:
        dist.init_process_group(backend, timeout=TIMEOUT)
    gradient, other = torch.ones(1 << 20 if backend == "nccl" else 64, device=device), dist.new_group() if fault == "swap" else None

    def step() -> None:
        dist.all_reduce(gradient)
        gradient.fill_(1)[0].item()

    for _ in range(5):
        step()
    ready.touch()
    if fault == "training":  # every GPU busy all the time, and the host always at the same line
        weights = torch.ones(4096, 4096, device=device)
        while True:
            for _ in range(40):
                weights = (weights @ weights).clamp(-1, 1)
            step()
    while fault in ("straggler", "healthy"):
        time.sleep(0.22 if guilty and fault == "straggler" else 0.02)
        step()
    if fault == "exception" and guilty:
        raise ValueError("sample 4711 has no label")
    if fault == "oom" and guilty:
        torch.empty(1 << 60, dtype=torch.uint8, device=device)
    if fault == "send" and guilty:
        dist.send(torch.ones(1 << 24), (rank + 1) % size)
    if fault == "swap":  # lines of their own: a stack tells them apart
        if not guilty:
            dist.all_reduce(gradient)
        dist.all_reduce(gradient, group=other)
    if guilty and fault in ("skip", "gil", "checkpoint", "loop"):
        {"skip": wait_for_request, "gil": match_forever, "loop": tokenize}.get(fault, lambda: save_checkpoint(ready.parent))()
    if fault == "other-collective":
        dist.barrier()
    if fault == "spin" and guilty:
        torch.cuda._sleep(1 << 37)  # over a minute at 2 GHz
    try:
        time.sleep(1.0 if fault in ("sigkill", "sigstop") else 0.0)
        step()
        step()
    except RuntimeError:  # the peer is gone: begin again without it, as elastic jobs do
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
        dist.init_process_group(backend, timeout=TIMEOUT)


if __name__ == "__main__":
    import torch  # noqa: F401  (the ranks have it from here)

    for line in sys.stdin:
        try:
            pids = launch(json.loads(line)) if len(line) > 3 else reap()
        except TimeoutError as error:  # that test has no rank to look at and fails; the next one has a launcher
            print(error, file=sys.stderr)
            pids = []
        print(json.dumps(pids), flush=True)
