"""Two digests (digest.py), read and compared tensor by tensor, whatever each side calls and fuses them."""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nccl_runbook.sync.arrived.facts import Arrival, Pair

# what torch.compile, DDP, FSDP1 and activation checkpointing put into names (torch 2.11)
_WRAPPERS = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# rows of one tensor, in this order: packed_modules_mapping of qwen2.py (vLLM at 013a279, read)
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
# stacks of experts, as vLLM's FusedMoE (w13: gate, then up) and transformers name them; rows in this order
_STACK = re.compile(r"(.*\bexperts\.)(w13_weight|gate_up_proj|w2_weight|down_proj)")
_EACH = {
    "w13_weight": ("gate_proj", "up_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "w2_weight": ("down_proj",),
    "down_proj": ("down_proj",),
}
_OTHER_NAME = {"w13_weight": "gate_up_proj", "w2_weight": "down_proj"}
_TIED = ("lm_head.weight", "model.embed_tokens.weight")  # one tensor, which either side may leave out
_PADDED = ("embed_tokens", "lm_head")  # engines round their rows up, with zeros, which add nothing to a sum
_MASK = (1 << 64) - 1


class Held(NamedTuple):
    """One tensor, or several joined, as rows with three sums."""

    dtype: str
    rows: int
    columns: int
    alone: int
    by_row: int
    by_column: int

    def __str__(self) -> str:
        return f"{self.dtype} of {self.rows} x {self.columns}"


Digest = Mapping[str, Held]


def collect(trainer: str, engine: str) -> Arrival:
    """The comparison of two digests. ``engine``: a file, or one for each rank in order, separated by commas.
    ValueError if a file cannot be read, or no two tensors can be compared."""
    held, ranks = _digest(trainer), [_digest(path) for path in engine.split(",")]
    pairs = [_pair(*names, held, ranks) for names in counterparts(held, ranks[0])]
    if all(pair.said == "absent" for pair in pairs):
        names = [next(iter(digest), "none") for digest in (held, ranks[0])]
        raise ValueError(
            f"no tensor of the trainer has a counterpart in the engine ({names[0]} in {trainer}, "
            f"{names[1]} in {engine})"
        )
    return Arrival(len(ranks), pairs)


def _digest(path: str) -> dict[str, Held]:
    """Tensor name -> what one side holds. ValueError if the file cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            tensors = json.load(file)["tensors"].items()
        return {_WRAPPERS.sub("", name): _held(*tensor) for name, tensor in tensors}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = (
            error.strerror if isinstance(error, OSError) else "the file is not a digest that digest.py wrote"
        )
        raise ValueError(f"cannot read {path}: {why}") from error


def _held(dtype: str, shape: Sequence[int], sums: Sequence[str]) -> Held:
    """The entry of a tensor. ValueError if it has no shape."""
    if not all(type(side) is int and 0 <= side < 1 << 40 for side in shape):
        raise ValueError("no shape")
    columns = shape[-1] if len(shape) > 1 else 1
    alone, by_row, by_column = (int(number, 16) for number in sums)
    return Held(str(dtype), math.prod(shape) // max(1, columns), columns, alone, by_row, by_column)


def joined(parts: Sequence[Held], side_by_side: bool = False) -> Held:
    """The tensor that has the rows (or columns) of these one after the other."""
    first = parts[0]
    begins = [0, *itertools.accumulate(part.columns if side_by_side else part.rows for part in parts)]
    moved = sum(begin * part.alone for begin, part in zip(begins, parts, strict=False))
    return Held(
        "/".join(dict.fromkeys(part.dtype for part in parts)),
        first.rows if side_by_side else begins[-1],
        begins[-1] if side_by_side else first.columns,
        sum(part.alone for part in parts) & _MASK,
        (sum(part.by_row for part in parts) + (0 if side_by_side else moved)) & _MASK,
        (sum(part.by_column for part in parts) + (moved if side_by_side else 0)) & _MASK,
    )


def counterparts(trainer: Digest, engine: Digest) -> list[tuple[list[str], list[str]]]:
    """(trainer's names, engine's names) of tensors that hold the same, in the engine's order; then those
    that only the trainer has."""
    of_engine = [(sources(name, trainer), [name]) for name in engine]
    used = {name for names, _ in of_engine for name in names}
    of_trainer = [([name], sources(name, engine)) for name in trainer if name not in used]
    split = {name for _, names in of_trainer for name in names}
    return [pair for pair in of_engine if pair[0] or pair[1][0] not in split] + of_trainer


def sources(name: str, other: Digest) -> list[str]:
    """Names on the other side whose rows ``name`` holds, in order; empty without a counterpart."""
    stack = _STACK.fullmatch(name)
    if name in other:
        return [name]
    if stack:
        also = [f"{stack[1]}{n}" for names in _OTHER_NAME.items() if stack[2] in names for n in names]
        each = _EACH[stack[2]]
        experts = itertools.takewhile(lambda e: f"{stack[1]}{e}.{each[0]}.weight" in other, itertools.count())
        names = [n for n in also if n in other] or [
            f"{stack[1]}{expert}.{part}.weight" for expert in experts for part in each
        ]
    elif name in _TIED:
        names = [n for n in _TIED if n in other]
    else:
        names = [
            name.replace(fused, part)
            for fused, parts in _FUSED.items()
            if f".{fused}." in name
            for part in parts
        ]
    return names if all(n in other for n in names) else []


def _pair(trainer: list[str], engine: list[str], held: Digest, ranks: Sequence[Digest]) -> Pair:
    """What the ranks of an engine hold: each of them all of it, or its rows, or its columns."""
    missing = [number for number, rank in enumerate(ranks) if not all(name in rank for name in engine)]
    if not trainer or not engine or missing:
        where = f"engine rank {missing[0]}" if missing else "the engine" if trainer else "the trainer"
        return Pair(trainer, engine, "absent", f"not on {where}")
    want, shards = joined([held[n] for n in trainer]), [joined([rank[n] for n in engine]) for rank in ranks]
    together = joined(shards, side_by_side=shards[0].rows == want.rows)
    each = shards if all(shard[:3] == want[:3] for shard in shards) else [together]
    fused = len(shards) > 1 and len(trainer) + len(engine) > 2
    # the first that differs, if any does
    outcome, got = min(
        ((_said(want, got, engine[0], fused), got) for got in each),
        key=lambda pair: pair[0].startswith("same"),
    )
    return Pair(trainer, engine, outcome, f"{want} on the trainer, {got} on the engine")


def _said(want: Held, got: Held, name: str, fused: bool) -> str:
    """A rank's part of a fused tensor holds rows of each source, so that only rows as such are compared."""
    padded = got.rows > want.rows and any(word in name for word in _PADDED)
    if got.dtype != want.dtype:
        return "dtype"
    if got.columns != want.columns or (got.rows != want.rows and not padded):
        return "shape"
    if got[3:] == want[3:]:
        return "same"
    loose = fused and (got.alone, got.by_column) == (want.alone, want.by_column)
    return "same-rows-in-any-order" if loose else "values"
