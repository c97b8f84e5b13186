"""What weights a process holds, as a small file: copy it beside your script (torch >= 2.2, Python >= 3.9).

    import digest
    # the trainer, on all ranks: those without a path only take part in gathering what FSDP2 has cut
    digest.save(model.named_parameters(), "trainer.json" if rank == 0 else "", dtype=torch.bfloat16)
    # the engine, each rank; vLLM: llm.apply_model(lambda model: digest.save(...))
    digest.save(model.named_parameters(), f"engine-{torch.distributed.get_rank()}.json")

Then, anywhere: nccl-runbook sync --arrived trainer.json engine-0.json,engine-1.json

Of each tensor: dtype, shape, and three sums over all its elements. An element counts by its bits, mixed; once
alone, once times its row, once times its column. Sums of parts therefore add up to those of the whole, so
that q, k and v can be compared with one qkv, and shards of several engine ranks with the whole.
"""

import json
import os

MIX = 0x9E3779B97F4A7C15 - (1 << 64)  # the golden ratio in 64 bits, as int64
BLOCK = 1 << 22  # elements at once


def save(named_tensors, path, dtype=None):
    """Write the digest of the tensors to ``path``, unless that is empty. ``dtype``: of the engine, if the
    trainer keeps more bits. OSError if writing fails."""
    tensors = {}
    for name, tensor in named_tensors:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        held = whole.detach().to(dtype if whole.is_floating_point() else None)
        tensors[name] = [str(held.dtype).partition(".")[2], list(held.shape), sums(held)]
    if path:
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump({"schema": "arrived/1", "tensors": tensors}, file)
        os.replace(path + ".part", path)


def sums(tensor):
    """Three numbers of 64 bits, in hex, over the rows of a tensor (a row is its last dimension; of a vector
    one element)."""
    import torch

    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    columns, device = tensor.shape[-1] if tensor.dim() > 1 else 1, tensor.device
    rows = tensor.numel() // max(1, columns)
    bits, at_once = tensor.contiguous().view(kind).reshape(rows, columns), max(1, BLOCK // max(1, columns))
    total, across = torch.zeros(3, dtype=torch.int64, device=device), torch.arange(columns, device=device)
    for first in range(0, rows, at_once):
        mixed = bits[first : first + at_once].to(torch.int64) * MIX
        mixed = (mixed ^ (mixed >> 32)) * MIX
        each = mixed.sum(1)
        down = torch.arange(first, first + len(each), device=device)
        total += torch.stack([each.sum(), (each * down).sum(), (mixed.sum(0) * across).sum()])
    return [f"{number % (1 << 64):016x}" for number in total.tolist()]
