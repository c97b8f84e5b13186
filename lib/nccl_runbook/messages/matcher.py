"""Which of many regular expressions match a line of a log.

``Matcher(expressions).matches(lines)`` gives exactly what ``re.search`` of every expression on every line gives, many
times faster: most lines hold none of the literals that the expressions need. ``may_match`` leaves out the check with
``re``, for a caller that searches parts of the line or wants the groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from nccl_runbook.messages import scanner
from nccl_runbook.messages.literals import Needs, alternatives, folded

LINE_CHARACTERS = 2000  # longer lines are cut into pieces that overlap by half: some expressions are slow on long texts
COMPILE_FROM = 8_000_000  # bytes
KEY = 3  # letters: what the index of words is built on
MAX_WORDS = 200_000  # different ones, kept with what they select
_LETTERS = bytes(byte | 32 if chr(byte).isalpha() and byte < 128 else 32 for byte in range(256))


class Matcher:
    """Asks lines for many expressions at once.

    With hyperscan, a compiled database of all expressions is kept in the user's cache (``build``). Without it, the
    words of a line select the expressions. The answer is the same.
    """

    def __init__(self, expressions: Mapping[str, str]) -> None:
        """``expressions``: id -> Python regular expression, for ``str``. Nothing is compiled yet."""
        self._expressions = dict(expressions)
        self._ids = tuple(expressions)
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._scanner: scanner.Scanner | None = None
        self._words: _Words | None = None
        self._asked = 0  # bytes so far

    def may_match(self, lines: Sequence[bytes]) -> dict[int, tuple[str, ...]]:
        """Index of a line -> ids, in order, of all expressions that match the line or a part of it, and some others.

        A part: what is left when something is cut off the ends. Linear in the length of a line.
        """
        self._choose(sum(map(len, lines)))
        found = self._by_scanner(lines) if self._scanner else self._by_words(dict(enumerate(lines)))
        return {at: tuple(self._ids[number] for number in sorted(numbers)) for at, numbers in found.items()}

    def matches(self, lines: Sequence[bytes]) -> dict[int, tuple[str, ...]]:
        """Index of a line -> ids, in order, of the expressions that match its text; other lines are left out.

        The text: UTF-8, with U+FFFD for what is not. Of a line longer than LINE_CHARACTERS, any of its ``pieces``.
        """
        found = {}
        for at, ids in self.may_match(lines).items():
            texts = pieces(lines[at].decode("utf-8", "replace"))
            if matching := tuple(id for id in ids if any(map(self.pattern(id).search, texts))):
                found[at] = matching
        return found

    def pattern(self, id: str) -> re.Pattern[str]:
        """The compiled expression; each is compiled when it is first needed."""
        if id not in self._patterns:
            self._patterns[id] = re.compile(self._expressions[id])
        return self._patterns[id]

    def build(self) -> bool:
        """Compile the database (seconds) and keep it in the cache. False if hyperscan or the cache cannot be used."""
        expressions = [*self._expressions.values()]
        compiled = scanner.stored(expressions) or scanner.compiled(expressions)
        return compiled is not None and scanner.stored(expressions) is not None

    def _choose(self, length: int) -> None:
        """Take the database from the cache at first; compile it only when that is less work than going on without."""
        expressions = [*self._expressions.values()]
        if not self._asked:
            self._scanner = scanner.stored(expressions)
        if self._scanner is None and self._asked < COMPILE_FROM <= self._asked + length:
            self._scanner = scanner.compiled(expressions)
        self._asked += length

    def _by_scanner(self, lines: Sequence[bytes]) -> dict[int, Iterable[int]]:
        found, others = {}, {}
        for at, line in enumerate(lines):
            readable = scanner.readable(line)
            if readable is None:
                others[at] = line
            elif numbers := self._scanner.numbers(readable):
                found[at] = numbers
        return {**found, **self._by_words(others)} if others else found

    def _by_words(self, lines: Mapping[int, bytes]) -> dict[int, Iterable[int]]:
        """Without hyperscan: the words of each line select what else is looked for in it."""
        if self._words is None:
            self._words = _Words(self._expressions.values())
        words, branches = self._words, self._words.branches
        block = folded(b"\n".join(lines.values()))
        always = [at for at in words.always if _holds(block, branches[at][1])]
        found = {}
        for index, line in lines.items():
            low = folded(line)
            selected = set(always).union(*map(words.__getitem__, low.translate(_LETTERS).split()))
            if numbers := {branches[at][0] for at in selected if _holds(low, branches[at][1])}:
                found[index] = numbers
        return found


class _Words(dict[bytes, Sequence[int]]):
    """Word -> which branches a line with this word may match; a branch is one alternative of an expression."""

    def __init__(self, expressions: Iterable[str]) -> None:
        """``branches``: number of the expression, and what a line must hold; ``always``: those not found by a word."""
        self.branches: list[tuple[int, Needs]] = []
        self.always: list[int] = []
        self._keys: dict[bytes, dict[bytes, list[int]]] = {}
        for number, expression in enumerate(expressions):
            for needs in alternatives(expression):
                rarest_first = sorted(needs, key=_shortest_key, reverse=True)
                if needs and _shortest_key(rarest_first[0]) >= KEY:
                    for key in map(_key, rarest_first[0]):
                        self._keys.setdefault(key[:KEY], {}).setdefault(key, []).append(len(self.branches))
                else:
                    self.always.append(len(self.branches))
                self.branches.append((number, tuple(rarest_first)))

    def __missing__(self, word: bytes) -> Sequence[int]:
        if len(self) > MAX_WORDS:
            self.clear()
        of_parts = [self._keys.get(word[at : at + KEY], {}) for at in range(len(word) - KEY + 1)]
        self[word] = [at for keys in of_parts for key, branches in keys.items() if key in word for at in branches]
        return self[word]


def pieces(text: str) -> list[str]:
    """The text, or if it is very long, pieces of LINE_CHARACTERS that overlap by half."""
    step = LINE_CHARACTERS // 2
    return [text[at : at + LINE_CHARACTERS] for at in range(0, max(1, len(text) - step), step)]


def _key(literal: bytes) -> bytes:
    """The longest word of a literal."""
    return max(literal.translate(_LETTERS).split(), key=len, default=b"")


def _shortest_key(literals: Iterable[bytes]) -> int:
    return min(len(_key(literal)) for literal in literals)


def _holds(low: bytes, needs: Needs) -> bool:
    """Whether a folded line holds a literal of each set."""
    for literals in needs:  # plain loops: this is asked a million times for a long log
        for literal in literals:
            if literal in low:
                break
        else:
            return False
    return True
