"""RL frameworks: the flags that decide which process sits on which GPU, each with the default that the framework's source gives."""
from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from pathlib import Path

# a flag with one of these in its name is worth a word where we do not know it
_ABOUT_PLACEMENT = re.compile(r"gpu|node|engine|colocat|parallel_size|num_proc|nproc|visible|placement|sync_backend|world_size", re.I)


@dataclasses.dataclass(frozen=True)
class Flag:
    """``field``: what it decides, a name of planning/frameworks.py, "" for nothing about groups; ``default``: the framework's."""

    name: str
    field: str
    default: str


@dataclasses.dataclass(frozen=True)
class Framework:
    """``marks``: words that give it away in a command; ``apart``: those that put engines on GPUs of their own; ``share_*``: how engine and
    trainer are made to share."""

    name: str
    source: str
    marks: tuple[str, ...]
    apart: tuple[str, ...]
    share_text: str
    share_lines: tuple[str, ...]
    flags: dict[str, Flag]


@functools.cache
def frameworks() -> dict[str, Framework]:
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: Framework(name, f["source"], tuple(f["marks"]), tuple(f["apart"]), f["share_text"], tuple(f["share_lines"]),
                            {n: Flag(n, v["field"], str(v["default"])) for n, v in f["flags"].items()}) for name, f in data.items()}


def of(text: str) -> Framework | None:
    """The framework whose marks stand in the text, the first of the table."""
    return next((f for f in frameworks().values() if any(mark in text for mark in f.marks)), None)


def about_placement(name: str) -> bool:
    return bool(_ABOUT_PLACEMENT.search(name))
