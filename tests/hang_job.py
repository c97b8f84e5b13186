"""A job whose ranks are given one fault, and whose recorder dumps and logs are then left in a folder. Gloo without GPUs, NCCL with them.

    python hang_job.py OUT BACKEND WORLD FAULT[,FAULT...] CULPRIT [SECONDS]

The ranks are forked after torch was imported. Each does a few steps in three groups, meets its fault in step 4, and writes OUT/fr_rank_N
from a thread of its own SECONDS after that, whatever its main thread is in. What a rank prints is in OUT/rankN.log.
Several faults are one job each, in OUT/FAULT, the culprit one rank further each time.
"""
import datetime
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d as recorder  # noqa: E402

OUT, BACKEND, WORLD, FAULT, CULPRIT = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
WAIT_S = float(sys.argv[6]) if len(sys.argv) > 6 else 4.0
FAULTY_STEP, STEPS = 4, 20


def write_dump(rank: int) -> None:
    data = recorder._dump_nccl_trace() if BACKEND == "nccl" else recorder._dump_fr_trace()
    with open(f"{OUT}/.fr_{rank}", "wb") as file:
        file.write(data)
    os.rename(f"{OUT}/.fr_{rank}", f"{OUT}/fr_rank_{rank}")


def write_and_leave(rank: int, at: float) -> None:
    time.sleep(max(0.0, at - 0.5 - time.monotonic()))
    if FAULT in ("send", "recv"):  # Gloo records neither (torch 2.13): a stack shows them
        with open(f"{OUT}/stack_rank{rank}.txt", "w") as file:
            faulthandler.dump_traceback(file)
    time.sleep(max(0.0, at - time.monotonic()))
    write_dump(rank)
    os._exit(0)


class Rank:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.device = torch.device(f"cuda:{rank}" if BACKEND == "nccl" else "cpu")
        if BACKEND == "nccl":
            torch.cuda.set_device(rank)
        dist.init_process_group(BACKEND, init_method=f"file://{OUT}/store", rank=rank, world_size=WORLD,
                                timeout=datetime.timedelta(seconds=4 if FAULT == "minibatch" else 90))
        self.other = dist.new_group(list(range(WORLD)))
        half = [list(range(WORLD // 2)), list(range(WORLD // 2, WORLD))]
        self.half = [dist.new_group(ranks) for ranks in half][rank >= WORLD // 2]

    def tensor(self, numel: int = 4096, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.ones(numel, dtype=dtype, device=self.device)

    def step(self, fault: str) -> None:
        samples = WORLD - 1 if fault == "minibatch" else 2 * WORLD
        print(f"[train_setup] responses={samples} num_mini_batches={samples // WORLD} ({samples} // {WORLD})", flush=True)
        if fault == "skip":
            print("skips this step's all_reduce", flush=True)
        elif samples // WORLD:
            self.reduce(fault)
        dist.all_reduce(self.tensor(64), group=self.half)
        calls = [lambda: dist.all_reduce(self.tensor(32), group=self.other), lambda: dist.broadcast(self.tensor(16), 0)]
        for call in calls[:: -1 if fault == "swap" else 1]:
            call()
            if BACKEND == "nccl" and FAULT == "swap":  # two groups are two streams: only a host that waits between them can hang
                torch.cuda.synchronize()
        if BACKEND == "nccl":
            torch.cuda.synchronize()

    def reduce(self, fault: str) -> None:
        if fault == "size":
            dist.all_reduce(self.tensor(8192))
        elif fault == "dtype":
            dist.all_reduce(self.tensor(4096, torch.float64))
        elif fault == "op":
            dist.broadcast(self.tensor(), CULPRIT)
        else:
            self.trouble(fault)
            dist.all_reduce(self.tensor())

    def trouble(self, fault: str) -> None:
        """What happens to a rank before its all_reduce."""
        if fault == "stall":
            time.sleep(60)
        elif fault == "exception":
            raise ValueError("no minibatch left")
        elif fault in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        elif fault == "send":
            dist.send(self.tensor(1 << 24), (self.rank + 1) % WORLD, tag=5)
        elif fault == "recv":
            dist.recv(self.tensor(), (self.rank + 1) % WORLD, tag=5)
        elif fault == "spin":
            torch.cuda._sleep(1 << 40)
        elif fault == "slow":
            time.sleep(0.2)


def main(rank: int) -> None:
    log = os.open(f"{OUT}/rank{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    me = Rank(rank)
    for step in range(STEPS if FAULT == "slow" else FAULTY_STEP):
        if step == FAULTY_STEP - 1 and FAULT != "slow":
            threading.Thread(
                target=write_and_leave, args=(rank, time.monotonic() + WAIT_S + 5.0 * (FAULT == "minibatch")), daemon=True
            ).start()
        faulty = rank == CULPRIT and (step == FAULTY_STEP - 1 or FAULT == "slow")
        try:
            me.step(FAULT if faulty else "")
        except Exception:  # noqa: BLE001 - a rank's fault is what the job is for
            traceback.print_exc()
            if FAULT == "exception" and rank == CULPRIT:
                os._exit(1)
            time.sleep(90)
        print(f"step {step} done", flush=True)
    if FAULT in ("none", "slow"):
        time.sleep(0.3)  # the watchdog notes what ended ten times a second
        write_dump(rank)
        os._exit(0)
    time.sleep(90)


def run(folder: str, fault: str, culprit: int) -> None:
    """One job with one fault, in ``folder``; whoever is left at the end is killed."""
    global OUT, FAULT, CULPRIT
    OUT, FAULT, CULPRIT = folder, fault, culprit
    os.makedirs(OUT, exist_ok=True)
    left, until = set(), time.monotonic() + 30
    for number in range(WORLD):
        pid = os.fork()
        if not pid:
            try:
                main(number)
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            finally:
                os._exit(1)
        left.add(pid)
    while left and time.monotonic() < until and not (len(left) == 1 and FAULT == "stop"):
        done, _ = os.waitpid(-1, os.WNOHANG)
        left.discard(done)
        time.sleep(0 if done else 0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if "," not in FAULT:
    run(OUT, FAULT, CULPRIT)
else:
    for at, name in enumerate(FAULT.split(",")):
        run(f"{sys.argv[1]}/{name}", name, (int(sys.argv[5]) + at) % WORLD)
