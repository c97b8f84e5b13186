"""Frameworks and the torch that each release was published for."""
from __future__ import annotations

import functools
import tomllib
from importlib.resources import files


@functools.cache
def _table() -> dict:
    return tomllib.loads((files(__package__) / "framework_versions.toml").read_text(encoding="utf-8"))


def names() -> list[str]:
    """Distributions whose metadata is read."""
    return [*_table()["frameworks"], *(n for n in _table()["watched"] if n not in _table()["frameworks"])]


def watched() -> list[str]:
    """Distributions whose version the others require."""
    return _table()["watched"]


def published(name: str, version: str) -> str:
    """The torch that this release's wheel requires, "" where the table does not know."""
    return _table()["published"].get(name, {}).get(version, "")
