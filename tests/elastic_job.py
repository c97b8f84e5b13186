"""A job whose first attempt ends with an exception and whose second one hangs: tests/data/hang/elastic-* are from it (torch 2.13, Gloo).

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 4 --max-restarts 1 --log-dir LOGS --redirects 3 \
        elastic_job.py OUT same|names RAISES STEP SLEEPS STEP [RANK,...]

RAISES does in its step of attempt 0, SLEEPS sleeps from its step of attempt 1 on; the last ranks leave no dump of attempt 1. With one
store for all attempts, torchrun's default, the second one does not get through `init_process_group` over Gloo: it finds the addresses of
the first (torch 2.13, seen; pytorch issue 135712).
"""
import datetime
import os
import sys
import threading
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d as recorder  # noqa: E402

OUT, NAMES = sys.argv[1], sys.argv[2]
RAISES, FIRST, SLEEPS, SECOND = map(int, sys.argv[3:7])
WITHOUT = set(map(int, sys.argv[7].split(","))) if len(sys.argv) > 7 else set()
ATTEMPT, RANK = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])


def write_dump() -> None:
    with open(f"{OUT}/fr_rank_{RANK}" if NAMES == "same" else f"{OUT}/attempt{ATTEMPT}_rank_{RANK}", "wb") as file:
        file.write(recorder._dump_fr_trace())


def write_later() -> None:
    time.sleep(6)
    if RANK not in WITHOUT:
        write_dump()
    time.sleep(60)
    os._exit(3)


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=90))
for step in range(40):
    if ATTEMPT and step == SECOND:
        threading.Thread(target=write_later, daemon=True).start()
        time.sleep(300 if RANK == SLEEPS else 0)
    if not ATTEMPT and step == FIRST:
        write_dump()
        time.sleep(1)
        if RANK == RAISES:
            raise ValueError("no minibatch left")
    time.sleep(0.02)
    dist.all_reduce(torch.ones(64))
    if step % 5 == 0:
        dist.barrier()
    dist.all_reduce(torch.ones(8))
    print(f"attempt {ATTEMPT} rank {RANK} step {step} done", flush=True)
