"""The decision table of weight syncs, and the lines that choose a way in each framework."""
from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from nccl_runbook.causes.toml import table


def lines_for(method: str) -> list[tuple[str, tuple[str, ...]]]:
    """(framework and versions, its lines) for the way that ``method`` stands for: nccl, ipc, gloo or disk."""
    way = "disk" if "disk" in method else method.partition("-")[0]
    return [(row["name"], row[way]) for row in table("sync/choice")["framework"] if way in row]


def phase_of(frames: Sequence[str]) -> str:
    """The phase of a weight sync that a stack shows. ``frames``: "function file", innermost first, with or
    without the class; "" where none of them syncs weights."""
    own, named = table("sync/choice")["own"], [re.sub(r"^[^ ]*\.", "", frame) for frame in frames]  # without class or <locals>
    roots = [number for number, frame in enumerate(named) if re.match(own["sync"], frame)]
    inside = named[:roots[-1] + 1] if roots else []
    whole = (phase for phase, names in own["phases"].items() if any(re.search(names, f) for f in inside))
    leaf = (phase for f in inside for phase, names in own["innermost"].items() if re.search(names, f))
    return next(itertools.chain(whole, leaf), "other") if inside else ""
