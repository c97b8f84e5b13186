"""How a status looks: a word, a symbol and a colour, so that no one of them carries the meaning alone."""
from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Badge:
    """``word`` and ``symbol`` for readers, ``tone`` a key of tables.TONES and a class of the page's style."""

    word: str
    symbol: str
    tone: str


BADGES = {
    "ok": Badge("ok", "\u2713", "ok"), "note": Badge("note", "i", "note"), "warn": Badge("warning", "!", "warn"),
    "broken": Badge("broken", "\u2715", "broken"), "unknown": Badge("unknown", "?", "unknown"),
    "skipped": Badge("skipped", "\u2013", "muted"), "running": Badge("running", "\u2026", "muted"),
    # verdicts
    "healthy": Badge("healthy", "\u2713", "ok"), "degraded": Badge("degraded", "!", "warn"),
    # how sure a cause is
    "established": Badge("established", "\u25cf", "broken"), "likely": Badge("likely", "\u25d5", "warn"),
    "possible": Badge("possible", "\u25d1", "unknown"), "ruled-out": Badge("ruled out", "\u25cb", "muted"),
}


def badge(status: str) -> Badge:
    """The badge of a step's status, a verdict or a cause's status; a word of its own for anything else."""
    return BADGES.get(status) or Badge(status, "?", "muted")
