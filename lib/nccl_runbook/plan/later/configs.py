"""Configurations that are not one YAML file: prime-rl's TOML, and NeMo-RL's YAML with its `defaults`."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from nccl_runbook.plan import read_training_file as training_file

# for one key of many parts tomllib takes the square of its length, and memory, too: 16,000 parts take 1 GB
# (CPython 3.11)
MOST_DOTS = 1 << 11
MOST_PARENTS = 8  # of the longest chain in NeMo-RL's examples/configs: 3
_DEFAULTS = re.compile(r"^defaults:((?:[ \t]*(?:\n[ \t]*-[ \t]*)?[\"']?[\w./-]+[\"']?)+)", re.M)
_NEMO = re.compile(r"^(?:policy|cluster):", re.M)


def whole(text: str, file: Path | None) -> str:
    """The text itself, or JSON of one level in its place, with the framework's name. ValueError if it cannot
    be read."""
    if file is not None and file.suffix == ".toml":
        flat = _of_toml(text)
        return json.dumps({"prime_rl": "its TOML", **flat} if "orchestrator.given" in flat else {})
    is_nemo = len(_NEMO.findall(text)) > 1 or _parents(text)
    if file is not None and file.suffix in (".yaml", ".yml") and is_nemo:
        flat = _inherited(text, file, MOST_PARENTS)
        if "policy.generation.colocated.enabled" in flat:
            return json.dumps({"nemo_rl": "its YAML", **flat})
    return text


def _of_toml(text: str) -> dict[str, str]:
    """Plain values by dotted name; a table without any is "given"."""
    if text.count(".") > MOST_DOTS:
        raise ValueError(f"the name of a setting has more than {MOST_DOTS} dots")
    try:
        left: list[tuple[str, Any]] = [("", tomllib.loads(text))]
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"not readable as TOML: {str(error)[:100]}") from error
    values: dict[str, str] = {}
    while left:
        prefix, value = left.pop()
        if isinstance(value, dict):
            values |= {f"{prefix}given": "true"} if prefix else {}
            left += [(f"{prefix}{name}.", inner) for name, inner in value.items()]
        elif not isinstance(value, list):
            values[prefix[:-1]] = str(value).lower() if isinstance(value, bool) else str(value)
    return values


def _parents(text: str) -> list[str]:
    return [
        name
        for name in re.findall(r"[\w.][\w./-]*", " ".join(_DEFAULTS.findall(text)))
        if name.endswith((".yaml", ".yml"))
    ]


def _inherited(text: str, file: Path, left: int) -> dict[str, str]:
    """NeMo-RL, utils/config.py: parents first, each relative to the file that names it; `_override_` drops
    what they say of a section."""
    flat: dict[str, str] = {}
    for name in _parents(text)[: MOST_PARENTS if left else 0]:
        try:
            flat |= _inherited(training_file.text_of(file.parent / name), file.parent / name, left - 1)
        except ValueError as error:
            raise ValueError(f"the defaults in {name}: {error}") from error
    own = training_file.read(text).flat
    fresh = tuple(name.removesuffix("_override_") for name in own if name.endswith("._override_"))
    return {**{n: v for n, v in flat.items() if not (fresh and n.startswith(fresh))}, **own}
