"""A training YAML: what of it decides the placement. Nothing is resolved or executed.

OmegaConf's ${a.b} is followed inside the same file, as AReaL's configurations use it for names and sizes.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.redact import clipped
from nccl_runbook.logs import file
from nccl_runbook.scripts.manifests import documents

MOST_BYTES = 1 << 20
MOST_FILES = 500
MOST_ENTRIES = 20_000
LONGEST_KEY = 100
FIRST = (
    "rollout",
    "actor",
    "critic",
    "ref",
    "teacher",
)  # roles in the order of AReaL; any other engine comes after them
NOTHING = ("", "~", "null", "Null", "NULL")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_BACKEND = re.compile(r"(\w+)\.backend")
_COMPONENT = re.compile(r"\w+(\[\w+\])?:|\$\{")  # a backend with its size, or where one stands


@dataclasses.dataclass(frozen=True)
class Training:
    """What one file says. ``mode``: its allocation string, or empty; ``backends``: role -> its own string;
    ``shares``: role -> role whose GPUs it uses; ``gpus``, ``nodes``: 0 if not stated; ``update``:
    weight_update_mode or empty; ``scheduler``: its type or empty; ``has_ref``: whether a reference model is
    loaded (actor.kl_ctl defaults to 0.1); ``realhf``: a file of AReaL's first program, with sizes at the
    top; ``flat``: every plain value by its dotted name."""

    mode: str
    backends: dict[str, str]
    shares: dict[str, str]
    gpus: int
    nodes: int
    update: str
    scheduler: str
    has_ref: bool
    realhf: bool
    flat: dict[str, str]


def files(path: Path) -> list[Path]:
    """YAML files at or below ``path``, and broken links or unreadable folders (for which ``text_of`` gives
    the reason). Links that leave a folder are not followed."""
    shut: list[OSError] = []
    below = [
        Path(folder, n)
        for folder, _, names in os.walk(path, onerror=shut.append)
        for n in names
        if n.endswith((".yaml", ".yml"))
    ]
    return (
        sorted(
            [
                *[p for p in below if not (p.is_symlink() and os.path.exists(p))],
                *(Path(error.filename) for error in shut),
            ]
        )
        if path.is_dir()
        else [path]
    )


def text_of(path: Path) -> str:
    """Text of the file. ValueError with the reason; the caller names the file."""
    text = file.text_of(str(path), MOST_BYTES, "a configuration")
    if isinstance(text, Gap):
        raise ValueError(text.detail.replace(f"{path} ", "it ", 1))
    return text


def read(text: str, overrides: Mapping[str, str] | None = None) -> Training:
    """What the YAML says, with ``overrides`` of a command line applied. ValueError if it is no YAML."""
    data, *others = documents(text) or [None]
    if others:
        raise ValueError("not readable as YAML: more than one document")
    return _training({**(_flat(data) if isinstance(data, dict) else {}), **(overrides or {})})


def _flat(data: dict[str, Any]) -> dict[str, str]:
    """Plain values by dotted name; a value from "<<" holds unless a nearer one (even null or a map) has the
    name. Lists and anything below eight levels are left out."""
    values: dict[str, str] = {}
    taken: set[str] = set()
    left: list[tuple[str, Any, int]] = [("", data, 0)]
    entries = 0
    while left and entries < MOST_ENTRIES:  # aliases may make a small file endless
        prefix, part, depth = left.pop()
        entries += 1 + len(part)
        merged = part.get("<<")
        inner = [
            (prefix, one) for one in reversed(merged if isinstance(merged, list) else [merged])
        ]  # what is put last is taken first
        for key, value in part.items():
            if key != "<<" and len(key) <= LONGEST_KEY and (name := f"{prefix}{key}") not in taken:
                taken.add(name)
                inner.append((f"{name}.", value))
                if isinstance(value, str) and value not in NOTHING:
                    values[name] = clipped(value, 2000)
        left += [(name, one, depth + 1) for name, one in inner if isinstance(one, dict) and depth < 8]
    return values


def _training(flat: dict[str, str]) -> Training:
    def value_of(name: str) -> str:
        value = flat.get(name, "")
        for _ in range(4):  # references to references
            value = clipped(_REFERENCE.sub(lambda m: flat.get(m[1], m[0]), value), 2000)
        return value

    backends = {
        m[1]: value_of(m[0]) for m in map(_BACKEND.fullmatch, flat) if m and _COMPONENT.match(value_of(m[0]))
    }
    return Training(
        mode=value_of("allocation_mode"),
        backends={r: backends[r] for r in (*FIRST, *backends) if r in backends},
        shares={
            r: value_of(f"{r}.scheduling_strategy.target")
            for r in backends
            if value_of(f"{r}.scheduling_strategy.type") == "colocation"
        },
        gpus=_count(value_of("cluster.n_gpus_per_node") or value_of("n_gpus_per_node")),
        nodes=_count(value_of("cluster.n_nodes") or value_of("n_nodes")),
        update=value_of("actor.weight_update_mode"),
        scheduler=value_of("scheduler.type"),
        # above zero
        has_ref=bool(re.fullmatch(r"(?=[0-9.]*[1-9])[0-9.]+(e-?\d+)?", value_of("actor.kl_ctl") or "0.1"))
        and any(n.startswith("ref.") for n in flat),
        realhf="n_gpus_per_node" in flat and "mode" in flat,
        flat=flat,
    )


def _count(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{1,6}", text) else 0
