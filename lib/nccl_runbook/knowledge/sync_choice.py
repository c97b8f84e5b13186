"""The decision table of weight syncs, and the lines that choose a way in each framework."""
from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Topology:
    """One row. ``order``: methods, the first that passed is taken; the rest in words, by allocation."""

    title: str
    order: tuple[str, ...]
    decoupled: str
    overlap: str
    shared: str
    colocated: str


@functools.cache
def _read() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@functools.cache
def topologies() -> dict[str, Topology]:
    return {name: Topology(**{**row, "order": tuple(row["order"])}) for name, row in _read()["topology"].items()}


def lines_for(method: str) -> list[tuple[str, tuple[str, ...]]]:
    """(framework and versions, its lines) for the way that ``method`` stands for: nccl, ipc, gloo or disk."""
    way = "disk" if "disk" in method else method.partition("-")[0]
    return [(row["name"], tuple(row[way])) for row in _read()["framework"] if way in row]


def phase_of(frames: Sequence[str]) -> str:
    """The phase of a weight sync that a stack shows. ``frames``: "function file", innermost first; "" where none of them syncs weights."""
    own = _read()["own"]
    roots = [number for number, frame in enumerate(frames) if re.match(own["sync"], frame)]
    inside = frames[:roots[-1] + 1] if roots else []
    return next((phase for phase, names in own["phases"].items() if any(re.search(names, f) for f in inside)), "other") if inside else ""
