"""Which rows and columns of each tensor a rank holds, and which of them go from which trainer rank to which
engine rank. Standard library, Python >= 3.9.

A tensor is rows (its dim 0) of so many bytes. A trainer rank holds rows of every tensor as FSDP2 cuts them;
an engine rank holds rows (column-parallel), columns (row-parallel), or all.
"""

import collections
import math

# what vLLM holds as RowParallelLinear (model_executor/models/qwen2.py at 013a279, read), and what it
# replicates; all else is split by rows: q, k, v, gate, up, their biases, embeddings, and stacks of experts
# as expert parallelism splits them
BY_COLUMNS = ("o_proj.weight", "down_proj.weight")
WHOLE = ("norm", "mlp.gate.", "router")

# rows from top up to bottom, and of each the bytes from left up to right
Part = collections.namedtuple("Part", "top bottom left right")
Piece = collections.namedtuple("Piece", "tensor source target part")


def sides(shape, width):
    """(rows, bytes of a row) of a tensor; a scalar is one row."""
    return (shape[0] if shape else 1), math.prod(shape[1:]) * width


def size(part):
    """Bytes of this part."""
    return (part.bottom - part.top) * (part.right - part.left)


def trainer_part(shape, width, ranks, rank):
    """The rows of a trainer rank as torch.chunk cuts dim 0 (FSDP2 of torch 2.11): the last ranks may hold
    fewer, or none."""
    rows, columns = sides(shape, width)
    each = -(-rows // ranks)
    return Part(min(rank * each, rows), min((rank + 1) * each, rows), 0, columns)


def engine_part(name, shape, width, ranks, rank):
    """The part of an engine rank as tensor parallelism cuts it; the whole tensor if it is replicated or does
    not divide."""
    rows, columns = sides(shape, width)
    by_columns = len(shape) == 2 and name.endswith(BY_COLUMNS)
    if any(word in name for word in WHOLE) or (shape[1] if by_columns else rows) % ranks:
        return Part(0, rows, 0, columns)
    each = (columns if by_columns else rows) // ranks
    return (
        Part(0, rows, rank * each, (rank + 1) * each)
        if by_columns
        else Part(rank * each, (rank + 1) * each, 0, columns)
    )


def pieces(tensors, held, wanted):
    """Yields what each trainer and engine rank have in common, in the same order on all ranks, since sends
    and receives are matched by order. ``held``: parts of each tensor by trainer rank; ``wanted``: by engine
    rank."""
    for tensor in tensors:
        for source, s in enumerate(held[tensor]):
            for target, t in enumerate(wanted[tensor]):
                part = Part(max(s.top, t.top), min(s.bottom, t.bottom), t.left, t.right)
                if part.top < part.bottom and part.left < part.right:
                    yield Piece(tensor, source, target, part)


def cut(matrix, base, part):
    """A view of ``part`` of the whole tensor, in a matrix that holds its part ``base``."""
    return matrix[
        part.top - base.top : part.bottom - base.top, part.left - base.left : part.right - base.left
    ]
