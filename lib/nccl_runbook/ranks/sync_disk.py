"""The ways that weights travel by file, one function each: ``way(sync, clock)``. Stands beside sync_ways.py.

Standard library and torch (>= 2.2), Python >= 3.9; safetensors where it is installed.
"""

import functools
import os

import fast_disk
import torch


@functools.lru_cache(maxsize=None)
def library():
    """safetensors' save and load if this interpreter has them and they work without NumPy, else None. Called
    before any sync."""
    try:
        import safetensors
        import safetensors.torch

        safetensors.torch.save({"probe": torch.zeros(1)})
    except (ImportError, RuntimeError):
        return None
    return safetensors


def disk(sync, clock):
    """Gather weights on the CPU and write one safetensors file, by the library's save and load or ours of
    the same form, one thread. NotEnough if the disk is full."""
    path = sync.path(f"model-v{sync.number}.safetensors")
    ours = library() is None
    sync.by = "the runbook's own writer" if ours else f"safetensors {library().__version__}"

    def write():
        with clock.host("gather"):
            tensors = {n: t.cpu() for n, t in zip(sync.names, sync.shaped)}
        free, limit = fast_disk.room(sync.args.directory)
        if free < sync.total + fast_disk.SPARE_BYTES:
            raise fast_disk.NotEnough(f"{limit} in {sync.args.directory}", sync.total, free)
        if ours:
            fast_disk.save(tensors, path, lanes=1, checksums=False)
        else:
            library().torch.save_file(tensors, path + ".part", metadata={"format": "pt"})
            os.replace(path + ".part", path)

    def read():
        if ours:
            fast_disk.load(path, dict(zip(sync.names, sync.shaped)), rows=sync.rows)
        else:
            with library().safe_open(path, framework="pt", device="cpu") as file:
                for i, name in enumerate(sync.names):
                    sync.views[i].copy_(sync.own(i, file.get_tensor(name).view(-1).view(torch.uint8)))

    return sync.by_file(clock, path, write, read)


def fast(sync, clock):
    """Sixteen files, threads and pinned buffers, with checksums on both sides: fast_disk.py."""
    path, tensors = sync.path("weights"), dict(zip(sync.names, sync.shaped))
    return sync.by_file(
        clock,
        path,
        write=lambda: fast_disk.save(tensors, path, clean=False),
        read=lambda: fast_disk.load(path, tensors, rows=sync.rows),
        tidy=lambda: fast_disk.sweep(path),
    )
