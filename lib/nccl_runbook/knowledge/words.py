"""What the words of a report say about its cause: weights learned from labelled reports, as tests/learn_words.py tells. They prove nothing;
they put in order what nothing better tells apart."""
from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable

from nccl_runbook.causes.toml import worked_out

MOST, FEW = 4, 10  # words that are named, none of fewer reports
SHORT = 20  # the length of one report in fifty; a sentence or two is no report, and what they say is in hints.toml
_ADDRESS, _WORD = re.compile(r"0x[0-9a-f]+"), re.compile(r"[a-z_]{2,}")


def words_of(text: str) -> set[str]:
    """Lower-case words of at least two letters, a name like NCCL_P2P_DISABLE as a whole and in its parts; no numbers."""
    whole = _WORD.findall(_ADDRESS.sub(" ", text.lower()))
    return {part for word in whole for part in (word, *word.split("_")) if len(part) > 1}


def mark(expression: str) -> str:
    """The name of a hint: another one as soon as its words are."""
    return f"~{zlib.crc32(expression.encode()):08x}"


def chances(words: Iterable[str], marks: Iterable[str] = ()) -> dict[str, tuple[float, list[str]]]:
    """Cause -> how likely the words make it among all (0 to 1), and those that speak for it most; empty where they are too few to tell.
    ``marks``: what else was seen, hints and what messages point at ("shm-too-small likely")."""
    learned = worked_out("words")  # weights in tenths, those of marks in hundredths
    known = {word: learned["words"][word] for word in words if word in learned["words"]}
    usual = math.log(sum(learned["reports"].values()) / FEW) + 1  # rarity of a word of so many reports
    length = math.sqrt(sum(rarity * rarity for rarity, *_ in known.values()))
    score, most = list(learned["base"]), [[] for _ in learned["base"]]
    for word, (rarity, *pairs) in known.items():
        for cause, weight in zip(pairs[::2], pairs[1::2]):
            score[cause] += weight * rarity / (10 * length)
            most[cause] += [(weight * rarity, word)] * (weight > 0 and rarity < usual and len(word) > 3)
    for pairs in (learned["marks"][name] for name in marks if name in learned["marks"]):
        for cause, weight in zip(pairs[::2], pairs[1::2]):
            score[cause] += weight / 100
    odds = [math.exp(value) for value in score] if length > SHORT else []
    strongest = ([word for _, word in sorted(each, reverse=True)[:MOST]] for each in most)
    return {cause: (one / sum(odds), words) for cause, one, words in zip(learned["causes"], odds, strongest)}
