"""The verdict of a log is what README says of the word: evidence of a fault, of a problem, or of no more than a symptom."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from book_samples import run_cli

WATCHDOG = (
    "[rank{rank}]:[E1201 10:00:00.{rank}23 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL("
    "SeqNum={seq}, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
)
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 44, in <module>\n    main()\n'
NCCL_ERROR = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, "
DONE = "step 2 loss 1.0\nstep 3 loss 0.9\nTraining finished successfully\n"
LOGS = {
    # an error ended the job: a fault, whatever its cause
    "memory": (TRACE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of"
               " which 3.20 GiB is free.\n", "broken"),
    "exception": (TRACE + "KeyError: 'label'\n", "broken"),
    "no interface": ("n1:1:1 [0] NCCL WARN Bootstrap : no socket interface found\n" + TRACE + NCCL_ERROR + "internal error\n", "broken"),
    "system error": (TRACE + NCCL_ERROR + "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
                     "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n", "broken"),
    "time limit": ("step 100\nslurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-12-01T10:00:00 DUE TO TIME LIMIT ***\n", "broken"),
    "no GPU": ("step 1\nkernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n", "broken"),
    # a problem, and the job went on
    "lost port": ("n1:1:1 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\nstep 2\n", "degraded"),
    # a symptom, or nothing
    "one timeout": (WATCHDOG.format(rank=1, seq=42), "unknown"),
    "three timeouts": ("".join(WATCHDOG.format(rank=rank, seq=42) for rank in range(3)), "unknown"),
    "one behind": ("".join(WATCHDOG.format(rank=rank, seq=42 - rank // 3) for rank in range(4)), "unknown"),
    "store gone": ("[rank0]: torch.distributed.DistBackendError: [0] is setting up NCCL communicator and retrieving ncclUniqueId from [0]"
                   " via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer\n", "unknown"),
    "went on": ("n1:1:1 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12 opcode=0 len=0 vendor err 129 (Send)\n"
                + DONE, "unknown"),
    "success": (DONE, "unknown"),
    "no log": ("hello\nworld\n", "unknown"),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_verdict_is_what_its_definition_says(tmp_path: Path, name: str) -> None:
    text, verdict = LOGS[name]
    (tmp_path / "train.log").write_text(text)
    done = run_cli("diagnose", tmp_path / "train.log", "--json")
    answer = json.loads(done.stdout)
    assert (answer["verdict"], answer["exit_code"]) == (verdict, done.returncode)
    causes = {h["status"] for h in answer["causes"]} & {"likely", "established"}
    assert bool(causes) == (verdict != "unknown" and name != "system error")
