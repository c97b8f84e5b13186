"""Which of many regular expressions may match a line of a log.

    matcher = Matcher({"oom": r"CUDA out of memory", "wait": r"(?i)timed? ?out"})
    matcher.may_match([b"all is well", b"[rank3]: Timed out"])     # {1: ("wait",)}
    matcher.pattern("wait").search("Timed out")

No expression that matches is left out, and few that do not match are in. The caller searches with
``pattern`` in the text of interest: the line, or a part of it, such as its text without a prefix.
"""

import bisect
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nccl_runbook.messages.literals import Needs, alternatives, folded, holds, strength

# Bytes asked before hyperscan is used. It takes 40 ms to load and to compile, and then finds 1,600 literals in 0.5 MB
# within 10 ms; bytes.find takes 240 ms for that (CPU time on a busy machine).
HYPERSCAN_FROM = 100_000
_LETTERS = bytes(byte if chr(byte) in "abcdefghijklmnopqrstuvwxyz" else 32 for byte in range(256))


class Matcher:
    """Asks lines for many expressions at once.

    Every alternative of an expression is a branch. A line is looked at closely if it holds the rarest literal that a
    branch needs. Hyperscan finds these literals in one pass; without it, each is searched for by itself.
    """

    def __init__(self, expressions: Mapping[str, str], needs: Callable[[str], Sequence[Needs]] = alternatives) -> None:
        """``expressions``: id -> Python regular expression, for ``str``; ``needs``: what a line must hold for each of
        its alternatives. No expression is compiled yet."""
        self._ids, self._expressions = tuple(expressions), dict(expressions)
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._always: set[int] = set()
        self._branches: dict[bytes, list[tuple[int, Needs]]] = defaultdict(list)  # literal -> what else a line must hold
        for number, expression in enumerate(expressions.values()):
            for branch in needs(expression):
                rarest, *others = sorted(branch, key=strength, reverse=True) or [()]
                anywhere = not rarest or b"" in rarest
                self._always |= {number} if anywhere else set()
                for literal in () if anywhere else rarest:
                    self._branches[literal].append((number, tuple(others)))
        self._literals = [*self._branches]
        self._words = [max(literal.translate(_LETTERS).split(), key=len, default=b"") for literal in self._literals]
        self._asked, self._database = 0, None  # bytes so far

    def may_match(self, lines: Sequence[bytes]) -> dict[int, tuple[str, ...]]:
        """Index of a line -> ids, in the order given, of all expressions that match it, and a few others.

        They include what matches in any part of the line as `re` sees it, decoded from UTF-8 with U+FFFD in place of
        what is not UTF-8. Lines without any are left out. The time grows no faster than the length of a line.
        """
        rows = [folded(line) for line in lines]
        ends = list(itertools.accumulate((len(row) + 1 for row in rows), initial=0))
        found: dict[int, set[int]] = {at: {*self._always} for at in range(len(rows) if self._always else 0)}
        hits = {(literal, bisect.bisect_right(ends, start) - 1) for literal, start in self._hits(b"\n".join(rows))}
        for literal, at in hits:
            for number, others in self._branches[literal]:
                if holds(rows[at], others):
                    found.setdefault(at, set()).add(number)
        return {at: tuple(self._ids[number] for number in sorted(found[at])) for at in sorted(found)}

    def pattern(self, id: str) -> re.Pattern[str]:
        """The compiled expression. Each is compiled when it is first needed. KeyError for an unknown id."""
        if id not in self._patterns:
            self._patterns[id] = re.compile(self._expressions[id])
        return self._patterns[id]

    def _hits(self, text: bytes) -> Iterator[tuple[bytes, int]]:
        """Each literal, and where it begins; of those that overlap themselves at least one a line."""
        if self._literals and self._asked < HYPERSCAN_FROM <= self._asked + len(text):
            self._database = _compiled(self._literals)
        self._asked += len(text)
        if self._database is None:
            words = b" ".join({*text.translate(_LETTERS).split()})
            return ((literal, at) for literal, word in zip(self._literals, self._words) if word in words for at in _places(literal, text))
        ends: list[tuple[int, int]] = []
        self._database.scan(text, match_event_handler=_take, context=ends)
        return ((self._literals[number], end - len(self._literals[number])) for number, end in ends)


def _places(literal: bytes, text: bytes) -> Iterator[int]:
    """Where the literal begins: the first place in each line."""
    at = text.find(literal)
    while at >= 0:
        yield at
        line_end = text.find(b"\n", at)
        at = text.find(literal, line_end) if line_end >= 0 else -1


def _take(number: int, start: int, end: int, flags: int, ends: list[tuple[int, int]]) -> None:
    ends.append((number, end))


def _compiled(literals: Sequence[bytes]) -> Any:
    """A hyperscan database of literals; None without hyperscan."""
    try:
        import hyperscan  # late: reading commands must start soon
    except (ImportError, OSError):  # no wheel for this machine, or one that its processor cannot run
        return None
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    spelled = [b"".join(b"\\x%02x" % byte for byte in literal) for literal in literals]
    database.compile(expressions=spelled, ids=range(len(spelled)), elements=len(spelled), flags=[0] * len(spelled))
    return database
