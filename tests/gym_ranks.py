"""A warm launcher of the gym's jobs: it has imported torch, and forks the ranks of each job that a line of JSON on its standard input
asks for."""
from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

import torch.distributed
import torch.utils.data  # noqa: F401
from nccl_runbook.gym import ask

sys.path.insert(0, str(Path(ask.__file__).with_name("job")))
import train  # noqa: E402


def fork(rank: int, does: str, folder: str, variables: dict[str, str]) -> int:
    """A rank of a warm launcher: it prints and ends as one that an interpreter of its own runs. Returns its
    pid."""
    if pid := os.fork():
        return pid
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "JOB_FOLDER": folder, **variables})
    for name in [name for name, value in os.environ.items() if value == ""]:
        del os.environ[name]
    torch.distributed.set_debug_level_from_env()
    log = os.open(Path(folder) / "job.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        train.run(does)
    except Exception:  # noqa: BLE001 - what a rank ends with is what the job is for
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)
    finally:
        sys.stdout.flush()
    os._exit(0)


def serve() -> None:
    """Lines of JSON (does, folder, variables, size); each is answered with the exit codes of its ranks."""
    for line in sys.stdin:
        job = json.loads(line)
        ranks = [fork(rank, job["does"], job["folder"], job["variables"]) for rank in range(job["size"])]
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]), flush=True)


if __name__ == "__main__":
    serve()
