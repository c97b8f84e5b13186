"""How a status looks: a word, a symbol and a colour, so that no one of them carries the meaning alone."""
from typing import NamedTuple

from nccl_runbook.report.markup import LOOKS


class Badge(NamedTuple):
    """``word`` and ``symbol`` for readers, ``tone`` a key of markup.TONES and a class of the page's style."""

    word: str
    symbol: str
    tone: str


BADGES = {
    **{status: Badge(status, *look) for status, look in LOOKS.items()},
    "ok": Badge("ok", "✓", "ok"),
    "note": Badge("note", "i", "note"),
    "warn": Badge("warning", "!", "warn"),
    "skipped": Badge("skipped", "–", "muted"),
    # how sure a cause is
    "established": Badge("established", "●", "broken"),
    "likely": Badge("likely", "◕", "warn"),
    "possible": Badge("possible", "◑", "unknown"),
    "ruled-out": Badge("ruled out", "○", "muted"),
}


def badge(status: str) -> Badge:
    """The badge of a step's status, a verdict or a cause's status; a word of its own for anything else."""
    return BADGES.get(status) or Badge(status, "?", "muted")
