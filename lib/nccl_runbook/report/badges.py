"""How a status looks: a word, a symbol and a colour, so that no one of them carries the meaning alone."""
from __future__ import annotations

import dataclasses

from nccl_runbook.causes.toml import table


@dataclasses.dataclass(frozen=True)
class Badge:
    """``word`` and ``symbol`` for readers, ``tone`` a key of tables.TONES and a class of the page's style."""

    word: str
    symbol: str
    tone: str


BADGES = {status: Badge(*look) for status, look in table("report/badges").items()}


def badge(status: str) -> Badge:
    """The badge of a step's status, a verdict or a cause's status; a word of its own for anything else."""
    return BADGES.get(status) or Badge(status, "?", "muted")
