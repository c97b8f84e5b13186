"""Frameworks and the torch that each release was published for."""
from __future__ import annotations

from nccl_runbook.causes.toml import table

_TABLE = table("environment/versions")


def names() -> list[str]:
    """Distributions whose metadata is read."""
    return list(dict.fromkeys([*_TABLE["frameworks"], *_TABLE["watched"]]))


def watched() -> tuple[str, ...]:
    """Distributions whose version the others require."""
    return _TABLE["watched"]


def published(name: str, version: str) -> str:
    """The torch that this release's wheel requires, "" where the table does not know."""
    return _TABLE["published"].get(name, {}).get(version, "")
