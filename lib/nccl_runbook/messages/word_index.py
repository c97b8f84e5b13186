"""Which expressions a line may match, without hyperscan: the words of the line select them.

Every alternative of an expression is a branch. A branch is filed under the rarest word of a literal that it
needs. What else it needs is looked for only in lines that have this word, be it inside a longer word.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from nccl_runbook.messages.literals import Needs, folded, holds

LETTERS = 3  # of a word: shorter ones select nothing
MAX_WORDS, MAX_LETTERS = 200_000, 100  # of lines, kept with the branches that they select: at most 60 MB
_LETTERS = bytes(byte if chr(byte) in "abcdefghijklmnopqrstuvwxyz" else 32 for byte in range(256))


class WordIndex:
    """The branches of some expressions by their words. Making it takes about 20 us for each expression."""

    def __init__(self, each: Iterable[Sequence[Needs]]) -> None:
        """``each``: what a line must hold for the alternatives of each expression."""
        each = [(number, needs) for number, branches in enumerate(each) for needs in branches]
        self._numbers = [number for number, _ in each]
        self._needs = [needs for _, needs in each]
        self._longest = [_longest(needs) for _, needs in each]
        self._rarity = Counter(word for needs in self._needs for word in _words(itertools.chain(*needs)))
        self._without_word: list[int] = []
        self._by_word = _Branches()
        for branch, needs in enumerate(self._needs):
            self._file(branch, needs)

    def may_match(self, lines: Mapping[int, bytes]) -> dict[int, set[int]]:
        """Key of a line -> places of all expressions that match in the line, and some others."""
        block = folded(b"\n".join(lines.values()))
        everywhere = [branch for branch in self._without_word if holds(block, self._needs[branch])]
        selected = {key: self._selected(folded(line), everywhere) for key, line in lines.items()}
        return {key: numbers for key, numbers in selected.items() if numbers}

    def _selected(self, low: bytes, everywhere: list[int]) -> set[int]:
        by_word = map(self._by_word.__getitem__, low.translate(_LETTERS).split())
        branches = {*everywhere, *itertools.chain.from_iterable(by_word)}
        longest, needs = self._longest, self._needs
        # two of three branches fail at the first test, which takes less time than a call
        return {self._numbers[at] for at in branches if longest[at] in low and holds(low, needs[at])}

    def _file(self, branch: int, needs: Needs) -> None:
        sets = [words for literals in needs if (words := self._rarest_words(literals))]
        words = min(sets, key=lambda words: sum(self._rarity[word] for word in words), default=())
        for word in words:
            self._by_word.add(word, branch)
        self._without_word += () if words else (branch,)

    def _rarest_words(self, literals: Iterable[bytes]) -> set[bytes]:
        """Of each literal the word that the fewest literals have; none if a literal has no word."""
        each = [_words([literal]) for literal in literals]
        return {min(words, key=self._rarity.__getitem__) for words in each} if all(each) else set()


class _Branches(dict[bytes, Sequence[int]]):
    """Word of a line -> the branches filed under a word that it holds."""

    def __init__(self) -> None:
        self._by_start: dict[bytes, dict[bytes, list[int]]] = {}

    def add(self, word: bytes, branch: int) -> None:
        self._by_start.setdefault(word[:LETTERS], {}).setdefault(word, []).append(branch)

    def __missing__(self, word: bytes) -> Sequence[int]:
        starts, end = self._by_start, len(word) - LETTERS + 1
        filed = [starts[start] for at in range(end) if (start := word[at : at + LETTERS]) in starts]
        branches = {at for words in filed for inner, of in words.items() if inner in word for at in of}
        if len(self) >= MAX_WORDS:
            self.clear()
        if len(word) <= MAX_LETTERS:
            self[word] = tuple(branches)
        return tuple(branches)


def _words(literals: Iterable[bytes]) -> list[bytes]:
    words = (word for literal in literals for word in literal.translate(_LETTERS).split())
    return [word for word in words if len(word) >= LETTERS]


def _longest(needs: Needs) -> bytes:
    """The longest literal that stands alone in its set; empty if none does."""
    alone = (literal for literals in needs if len(literals) == 1 for literal in literals)
    return max(alone, key=len, default=b"")
