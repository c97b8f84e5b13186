"""The methods that move weights. All else follows from these names: nccl, ipc and gloo say what carries the
bytes, disk that they travel by file, shm that the file lies in /dev/shm. ranks/sync_ways.py has the code of
each method under the same name."""

from nccl_runbook.sync.delta.facts import DELTA
from nccl_runbook.sync.reshard.facts import RESHARDED

# in the order in which they run; what takes longest comes last. nccl-one-gpu is nccl-flat with two ranks on
# one GPU allowed (NCCL >= 2.30)
METHODS = (
    "nccl-flat",
    "nccl-list",
    "nccl-per-tensor",
    "nccl-pinned",
    "nccl-one-gpu",
    "ipc-direct",
    "ipc-flat",
    "ipc-per-tensor",
    "fast-disk",
    "fast-disk-shm",
    "gloo-flat",
    "gloo-per-tensor",
    DELTA,
    "disk-shm",
    "disk",
    *RESHARDED,
)
