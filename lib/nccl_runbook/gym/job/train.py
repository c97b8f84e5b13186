"""One rank of a job: `train.py DOES`, under any launcher; `train.py --spawn DOES` starts its ranks itself;
`train.py --serve` forks the ranks of many jobs, each asked for by a line of JSON."""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

from calls import Calls
from early import Early
from late import Late
from on_gpu import OnGpu
from steady import Steady


class Training(Calls, Early, Late, OnGpu, Steady):
    """Everything that a rank can do, by the name in ``does``."""


def run(does: str) -> None:
    """Do it in the folder of the job."""
    getattr(Training(Path(os.environ.get("JOB_FOLDER", "."))), does)()


def spawned(local_rank: int, does: str) -> None:
    """What `torch.multiprocessing.spawn` calls: its ranks learn who they are from an argument."""
    os.environ.update(RANK=str(local_rank), LOCAL_RANK=str(local_rank))
    run(does)


def fork(rank: int, does: str, folder: str, variables: dict[str, str]) -> int:
    """A rank of a warm launcher: it prints and ends as one that an interpreter of its own runs. Returns its
    pid."""
    if pid := os.fork():
        return pid
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "JOB_FOLDER": folder, **variables})
    for name in [name for name, value in os.environ.items() if value == ""]:
        del os.environ[name]
    sys.modules["torch.distributed"].set_debug_level_from_env()
    log = os.open(Path(folder) / "job.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        run(does)
    except Exception:  # noqa: BLE001 - what a rank ends with is what the job is for
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)
    finally:
        sys.stdout.flush()
    os._exit(0)


def serve() -> None:
    """Lines of JSON (does, folder, variables, size); each is answered with the exit codes of its ranks."""
    import torch.distributed
    import torch.utils.data  # noqa: F401

    for line in sys.stdin:
        job = json.loads(line)
        ranks = [fork(rank, job["does"], job["folder"], job["variables"]) for rank in range(job["size"])]
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve()
    elif sys.argv[1] == "--spawn":
        import torch.multiprocessing

        torch.multiprocessing.spawn(spawned, (sys.argv[2],), nprocs=int(os.environ["WORLD_SIZE"]))
    else:
        run(sys.argv[1])
