"""Live looks made by hand: for cases that no machine here has (several hosts, GPUs, RAS)."""
from __future__ import annotations

import dataclasses
from pathlib import Path

from nccl_runbook.core.facts import Gap
from nccl_runbook.hang.live import judge as rules
from nccl_runbook.hang.live.facts import (
    Frame,
    Live,
    LiveGpu,
    LiveRank,
    RasCommunicator,
    RasRank,
    Sample,
    Stack,
    Thread,
)
from nccl_runbook.look import live as look_live

TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
IN_ALL_REDUCE = [Frame("all_reduce", TORCH, 3252), Frame("wrapper", TORCH.replace("distributed_c10d", "c10d_logger"), 83),
                 Frame("train", "/home/a/train.py", 30)]
IN_BARRIER = [dataclasses.replace(IN_ALL_REDUCE[0], function="barrier"), Frame("train", "/home/a/train.py", 35)]
IN_INIT = [Frame("_create_c10d_store", TORCH.replace("distributed_c10d", "rendezvous"), 199), Frame("init_process_group", TORCH, 1700),
           Frame("main", "/home/a/train.py", 5)]
SAVING = [
    Frame("_save", "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", 800),
    Frame("save_pretrained", "/home/a/train.py", 812),
]
ASLEEP = [Frame("next_request", "/home/a/serve.py", 7)]
LOOKS = 3  # where other work crowds this machine a look may say that it cannot tell; what it must never do is accuse another rank


def looked(pids: list[int], gap_s: float) -> tuple[Live, list[rules.Picture]]:
    """A real look at the job of these ranks and its pictures; looked at again where they are unknown."""
    for _ in range(LOOKS):
        look = look_live.look([p for p in pids if alive(p)][:1], gap_s, str)
        pictures = rules.judge_looks([look])
        if {p.kind for p in pictures} != {"unknown"}:
            break
    return look, pictures


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


def rank(
    number: int | None,
    frames: list[Frame] | None,
    state: str = "S",
    waits: str = "futex_do_wait",
    cpu_s: float = 0.0,
    *,
    world: int = 4,
    gil: bool = False,
    lines: tuple[int, ...] = (0, 0, 0, 0),
    moments: dict[str, int] | None = None,
    job: str = "localhost:29500 in net:[1]",
    local: int | None = None,
    has_torch: bool = True,
    nccl: str = "",
    sockets=(),
    switches: int = 0,
    ready_s: float = 0.0,
) -> LiveRank:
    """A rank that was in ``frames`` in each sample, ``lines`` further down each time; ``cpu_s`` and ``ready_s`` from one sample to the
    next."""
    samples = []
    for at, line in enumerate(lines):
        threads = [Thread(100 + (number or 0), state, waits, 5.0 + at * cpu_s, 10 + at * switches, at * ready_s)]
        moved = [dataclasses.replace(f, line=f.line + line) for f in frames or []]
        stacks = (
            [Stack(threads[0].tid, "MainThread", state == "R", gil, moved)] if frames else Gap("absent", "py-spy is not installed here")
        )
        samples.append(Sample(at * 3.0, threads, stacks))
    return LiveRank(
        100 + (number or 0),
        job,
        number,
        number if local is None else local,
        world,
        world,
        {},
        has_torch,
        nccl,
        list(sockets),
        ["step 4711"],
        Gap("not-run", "not started with one"),
        samples,
        {f"{state} {waits}": 97} if moments is None else moments,
    )


def look(*ranks: LiveRank, host: str = "node1", gap_s: float = 10.0, **more) -> Live:
    return dataclasses.replace(Live(host, "b", "2026-11-21T19:00:00Z", 0.4, gap_s, list(ranks), [], [], Gap("absent", "no NVML"),
                                    Gap("absent", "nobody answers")), **more)


def gpu(index: int, percent: int, watt: float, pid: int) -> LiveGpu:
    return LiveGpu(index, [percent, percent], [watt, watt], [pid])


def communicator(before: dict[int, int], after: dict[int, int]) -> RasCommunicator:
    """By rank how many all_reduce were launched at the first and at the last moment."""
    def rows(counts):
        return [RasRank(r, 100 + r, "10.0.0.1", r, {"AllReduce": n, "Broadcast": 2}, "") for r, n in counts.items()]

    return RasCommunicator("0xabc", len(before), rows(before), rows(after))
