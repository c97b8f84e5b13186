"""One rank of a job: `train.py DOES`, under any launcher; `train.py --spawn DOES` starts its ranks itself."""

import os
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


if __name__ == "__main__":
    if sys.argv[1] == "--spawn":
        import torch.multiprocessing

        torch.multiprocessing.spawn(spawned, (sys.argv[2],), nprocs=int(os.environ["WORLD_SIZE"]))
    else:
        run(sys.argv[1])
