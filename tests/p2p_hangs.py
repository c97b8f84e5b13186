"""A node whose P2P hangs, as one behind PCIe access control does: in every world that may use it, the first call of rank 1 never ends on
its GPU, once all are connected."""
from __future__ import annotations

import os
from pathlib import Path

PLANT = """import importlib.abc, importlib.util, os, sys, time

CALLS = ("barrier", "all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "send", "recv",
         "isend", "irecv", "batch_isend_irecv")
OFF = {"NCCL_P2P_DISABLE": ("1",), "NCCL_P2P_LEVEL": ("LOC", "0")}


def hang(module):
    import torch
    if module.get_rank() == 1 and not any(os.environ.get(name) in values for name, values in OFF.items()):
        torch.cuda._sleep(1 << 60) if torch.cuda.is_available() else time.sleep(1 << 20)


class Plant(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch.distributed.distributed_c10d":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), [setattr(module, c, then_hang(module, getattr(module, c))) for c in CALLS])
        return spec


def then_hang(module, call):
    return lambda *a, **k: (call(*a, **k), hang(module))[0]


sys.meta_path.insert(0, Plant())
"""


def planted(folder: Path) -> dict[str, str]:
    """The surroundings in which every Python has that fault; ``folder`` takes the file for it."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(PLANT)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))}
