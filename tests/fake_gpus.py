"""A machine with GPUs for tests where there is none: torch shows them, and ranks that ask for one run on the CPU over Gloo. The worlds
that hold both GPUs of a broken pair fail, as long as the file ``broken`` is there."""
from __future__ import annotations

import shlex
import sys
from pathlib import Path

PLANT = '''import importlib.abc, importlib.util, os, sys, types

GPUS, PAIR, SIGN = 4, {"1", "2"}, os.path.join(os.path.dirname(os.path.abspath(__file__)), "broken")


def after_torch(torch):
    real = torch.device

    class OnCpu:
        """What a rank file calls torch, from when it has chosen its GPU."""
        device = staticmethod(lambda *names: real("cpu"))

        def __getattr__(self, name):
            return getattr(torch, name)

    def set_device(index):
        names = sys._getframe(1).f_globals
        every = names["every_size"]
        names.update(torch=OnCpu(), every_size=lambda op, asked, most, run: every(op, [min(s, 1 << 20) for s in asked], most, run))

    cuda = torch.cuda
    cuda.init, cuda.is_available, cuda.device_count, cuda.set_device = (lambda: None), (lambda: True), (lambda: GPUS), set_device
    cuda.get_device_properties = lambda index: types.SimpleNamespace(name="Stand-in GPU", total_memory=1 << 33, major=9, minor=0)
    cuda.can_device_access_peer = lambda one, other: True


def after_distributed(module):
    start = module.init_process_group

    def init(backend=None, *more, **named):
        if PAIR <= {*os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")} and os.path.exists(SIGN):
            raise RuntimeError("planted: these two GPUs do not reach each other")
        return start("gloo", *more, **named)

    module.init_process_group = init


AFTER = {"torch": after_torch, "torch.distributed.distributed_c10d": after_distributed}


class Plant(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in AFTER:
            return None
        then = AFTER.pop(name)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), then(module))
        return spec


sys.meta_path.insert(0, Plant())
'''


def planted(folder: Path, gpus: int = 4) -> str:
    """The interpreter of a job on that machine, as a prefix; removing ``folder/broken`` mends the pair."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(PLANT.replace("GPUS, PAIR, SIGN = 4", f"GPUS, PAIR, SIGN = {gpus}"))
    (folder / "broken").touch()
    return shlex.join(["env", f"PYTHONPATH={folder}", sys.executable])
