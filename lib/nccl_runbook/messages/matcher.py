"""Which of many regular expressions may match a line of a log.

    matcher = Matcher({"oom": r"CUDA out of memory", "wait": r"(?i)timed? ?out"})
    matcher.may_match([b"all is well", b"[rank3]: Timed out"])     # {1: ("wait",)}
    matcher.pattern("wait").search("Timed out")

No expression that matches is left out, and few that do not match are in. The caller searches with
``pattern`` in the text of interest: the line, or a part of it, such as its text without a prefix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from nccl_runbook.messages import scanner
from nccl_runbook.messages.literals import Needs, alternatives, folded, lines_that_hold
from nccl_runbook.messages.word_index import WordIndex

# Bytes asked without a database before it is compiled. 630 expressions took 1.3 s to compile, and 5 MB in
# which no two lines are alike took 1.1 s without the database and 0.1 s with it (CPU time on a busy
# machine).
COMPILE_FROM = 6_000_000
INDEX_FROM = 16_000  # bytes: for fewer, to load a database or to make an index takes longer than to ask without


class Matcher:
    """Asks lines for many expressions at once.

    Hyperscan does it with a database of all expressions, which is kept in the user's cache. Without
    hyperscan, or until the database is there, an index of words does it, some ten times slower.
    """

    def __init__(self, expressions: Mapping[str, str], needs: Callable[[str], Sequence[Needs]] = alternatives) -> None:
        """``expressions``: id -> Python regular expression, for ``str``; ``needs``: what a line must hold for each of its
        alternatives. Nothing is compiled yet."""
        self._ids = tuple(expressions)
        self._expressions = tuple(expressions.values())
        self._by_id = dict(expressions)
        self._needs = needs
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._scanner: scanner.Scanner | None = None
        self._index: WordIndex | None = None
        self._asked = 0  # bytes so far
        self._prepared = False

    def may_match(self, lines: Sequence[bytes]) -> dict[int, tuple[str, ...]]:
        """Index of a line -> ids, in the order given, of all expressions that match it, and a few others.

        They include what matches in any part of the line as `re` sees it, decoded from UTF-8 with U+FFFD in
        place of what is not UTF-8. Lines without any are left out. The time grows no faster than the length
        of a line.
        """
        if self._asked + sum(map(len, lines)) < INDEX_FROM:
            found = self._one_by_one(lines)
        else:
            self._prepare(sum(map(len, lines)))
            found = self._by_scanner(lines) if self._scanner else self._by_words(dict(enumerate(lines)))
        self._asked += sum(map(len, lines))
        return {at: tuple(self._ids[number] for number in sorted(found[at])) for at in sorted(found)}

    def pattern(self, id: str) -> re.Pattern[str]:
        """The compiled expression. Each is compiled when it is first needed. KeyError for an unknown id."""
        if id not in self._patterns:
            self._patterns[id] = re.compile(self._by_id[id])
        return self._patterns[id]

    def build(self) -> bool:
        """Put the database into the cache, for a set-up. It takes seconds, or milliseconds if it is there.

        False if hyperscan or the cache cannot be used.
        """
        if scanner.stored(self._expressions) is None:
            scanner.compiled(self._expressions)
        return scanner.stored(self._expressions) is not None

    def _prepare(self, length: int) -> None:
        """Take the database from the cache. Compile it once so much was asked that this pays."""
        if not self._prepared:
            self._prepared = True
            self._scanner = scanner.stored(self._expressions)
        if self._scanner is None and self._asked < COMPILE_FROM <= self._asked + length:
            self._scanner = scanner.compiled(self._expressions)

    def _one_by_one(self, lines: Sequence[bytes]) -> dict[int, list[int]]:
        """Of few lines each expression is asked by itself, as an index or a database takes longer to load."""
        rows, found = [folded(line) for line in lines], {}
        block = b"\n".join(rows)
        for number, expression in enumerate(self._expressions):
            for at in lines_that_hold(block, rows, self._needs(expression)):
                found.setdefault(at, []).append(number)
        return found

    def _by_scanner(self, lines: Sequence[bytes]) -> dict[int, Collection[int]]:
        found: dict[int, Collection[int]] = {}
        unreadable = {}
        for at, line in enumerate(lines):
            readable = scanner.readable(line)
            if readable is None:
                unreadable[at] = line
            elif numbers := self._scanner.numbers(readable):
                found[at] = numbers
        return {**found, **self._by_words(unreadable)} if unreadable else found

    def _by_words(self, lines: Mapping[int, bytes]) -> Mapping[int, Collection[int]]:
        if self._index is None:
            self._index = WordIndex(map(self._needs, self._expressions))
        return self._index.may_match(lines)
