"""RL frameworks: the flags that decide which process sits on which GPU, each with the default that the framework's source gives."""
from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

from nccl_runbook.causes.toml import table

# a flag with one of these in its name is worth a word where we do not know it
ABOUT_PLACEMENT = re.compile(r"gpu|node|engine|colocat|parallel_size|num_proc|nproc|visible|placement|sync_backend|world_size", re.I)


@dataclasses.dataclass(frozen=True)
class Framework:
    """``marks``: words that give it away in a command; ``apart``: those that put engines on GPUs of their own; ``share_*``: how engine and
    trainer are made to share; ``flags``: by name {"field": what it decides, a name of plan/frameworks.py, "" for nothing about
    groups, "default": the framework's}."""

    name: str
    source: str
    marks: list[str]
    apart: list[str]
    share_text: str
    share_lines: list[str]
    flags: dict[str, dict[str, Any]]


@functools.cache
def frameworks() -> dict[str, Framework]:
    return {name: Framework(name=name, **row) for name, row in table("plan/flags").items()}


def of(text: str) -> Framework | None:
    """The framework whose marks stand in the text, the first of the table."""
    return next((f for f in frameworks().values() if any(mark in text for mark in f.marks)), None)
