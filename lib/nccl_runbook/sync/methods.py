"""The methods that move weights, and which of them to prefer where. All else follows from these names:
nccl, ipc and gloo say what carries the bytes, disk that they travel by file, shm that the file lies in
/dev/shm. ranks/sync_ways.py has the code of each method under the same name."""

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
    "disk-shm",
    "disk",
    *RESHARDED,
)

# row of choice.toml -> the first of these that passed is recommended
PREFERRED = {
    "one-gpu": (
        "ipc-direct",
        "ipc-flat",
        "ipc-per-tensor",
        "fast-disk-shm",
        "fast-disk",
        "gloo-flat",
        "gloo-per-tensor",
        "disk-shm",
        "disk",
    ),
    "p2p": (
        "nccl-flat",
        "nccl-pinned",
        "nccl-list",
        "nccl-per-tensor",
        "ipc-direct",
        "ipc-flat",
        "fast-disk-shm",
        "fast-disk",
        "disk-shm",
        "gloo-flat",
        "disk",
    ),
    "shm": ("nccl-flat", "nccl-list", "fast-disk-shm", "fast-disk", "gloo-flat", "disk-shm", "disk"),
    "sockets": ("fast-disk-shm", "fast-disk", "nccl-flat", "gloo-flat", "disk-shm", "disk"),
    "bus-ids": ("fast-disk-shm", "fast-disk", "gloo-flat", "disk-shm", "disk"),
}
