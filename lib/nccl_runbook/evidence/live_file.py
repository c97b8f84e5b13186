"""Live looks in JSON that others hand us: facts of the shape of ours, or nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from nccl_runbook.evidence import stacks
from nccl_runbook.facts.live import Live
from nccl_runbook.facts.recorder import Stack


def looks_in(value: Any, depth: int = 0) -> list[dict]:
    """Live looks anywhere in a record: an object with ranks that have samples."""
    if isinstance(value, dict):
        ranks = value.get("ranks")
        if isinstance(ranks, list) and any(isinstance(r, dict) and "samples" in r for r in ranks):
            return [value]
        value = list(value.values())
    return [look for v in value for look in looks_in(v, depth + 1)] if isinstance(value, list) and depth < 6 else []


def whole(looks: Iterable[Any]) -> list[Live]:
    """Those in which every sample has its threads, and every GPU its figures, as a look of ours has."""
    from pydantic import TypeAdapter, ValidationError

    found = []
    for look in looks:
        with contextlib.suppress(ValidationError):
            found.append(TypeAdapter(Live).validate_python(look))
    return [one for one in found if all(s.threads for rank in one.ranks for s in rank.samples)
            and all(g.utilisation_percent and g.power_w for g in (one.gpus if isinstance(one.gpus, list) else []))]


def stacks_of(name: str, looks: Iterable[Live]) -> list[Stack]:
    """The main thread of each rank in its last sample, as far as the look has it."""
    last = [(rank.rank, rank.samples[-1]) for look in looks for rank in look.ranks if rank.rank is not None and rank.samples]
    return [Stack(rank, name, [f"{f.function}, {f.file}:{f.line}"[:300] for f in held[0].frames[:stacks.MOST_FRAMES]] if held else [],
                  sample.threads[0].state[:4])
            for rank, sample in last for held in [sample.stacks if isinstance(sample.stacks, list) else []]]
