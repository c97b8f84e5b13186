"""Which of many regular expressions may match a line of a log.

    matcher = Matcher({"oom": r"CUDA out of memory", "wait": r"(?i)timed? ?out"})
    matcher.may_match([b"all is well", b"[rank3]: Timed out"])     # {1: ("wait",)}
    matcher.pattern("wait").search("Timed out")

No expression that matches is left out, and few that do not match are in. The caller searches with
``pattern`` in the text of interest: the line, or a part of it, such as its text without a prefix.

The literals that a line must hold are read from the expression itself. The reader is conservative. It leaves
out what it does not understand, so a result may be too weak but never wrong. Literals are in lower case:
a line is folded before they are looked for.
"""

import bisect
import dataclasses
import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

# private, and the same from Python 3.11 to 3.14
from re import _constants as op, _parser  # type: ignore[attr-defined]
from typing import Any

# What `re` takes for i, s and k when case is ignored. No other letter beyond ASCII matches an ASCII letter.
FOLDED = ((b"\xc4\xb0", b"i"), (b"\xc4\xb1", b"i"), (b"\xc5\xbf", b"s"), (b"\xe2\x84\xaa", b"k"))
SHORT = 3  # bytes: shorter literals are in most lines
compiled = functools.cache(re.compile)
Needs = tuple[frozenset[bytes], ...]
Part = str | list | None  # a letter; alternatives, each a list of parts; any text
# Bytes asked before hyperscan is used; each call counts as one more byte for each literal. Hyperscan takes
# 40 ms to load and to compile, and then finds 1,600 literals in 0.5 MB within 10 ms; bytes.find takes 240
# ms for that (CPU time on a busy machine).
HYPERSCAN_FROM = 100_000
# digits in the source of an expression that the digits of a line do not decide: how often something may
# stand there, any digit, and a digit within a word (P2P, 0x)
_UNDECIDED = re.compile(
    r"(?<!\\d)\{\d*,?\d*\}|\{[01]?,\d*\}|0-9|\b0x|(?<=[A-Za-z])(?<!\\[bdsw])\d+(?=[A-Za-z])"
)
# besides a literal number: [1-9], \d{4}, \1, (?!0), (?: 7)?
_CHOICE = re.compile(
    r"\[[^\]]{0,99}\d[^\]]{0,99}\]|\\d{|\\[1-9]|\(\?P=|"
    r"\(\?<?!(?:\([^()]{0,99}\)|[^()]){0,99}\d|\d[^()|]{0,99}\)\?"
)
_NUMBER = re.compile(rb"(?<![a-z\d])\d+(?![\dx])|\d+(?![a-z\d])")
_LETTERS = bytes(byte if chr(byte) in "abcdefghijklmnopqrstuvwxyz" else 32 for byte in range(256))


def folded(raw: bytes) -> bytes:
    """The text in lower case, with i, s and k for the four letters that match them when case is ignored."""
    low = raw.lower()
    for letter, plain in FOLDED if not raw.isascii() else ():
        low = low.replace(letter, plain)
    return low


def alternatives(expression: str) -> list[Needs]:
    """For each alternative of the expression, sets of literals; a matching line contains one of each set.
    Without sets any line may match. Takes about 100 us."""
    return [_needs(parts) for parts in _spread(_parts(_parser.parse(expression)))]


def numbered(expression: str) -> list[Needs]:
    """For each alternative that matches or not by the digits of a line, what the line without its digits
    must contain."""
    is_choice = _CHOICE.search(_UNDECIDED.sub("", expression))
    bare = [
        [{literal.translate(None, b"0123456789") for literal in of} for of in needs]
        for needs in alternatives(expression)
        if is_choice or any(_NUMBER.search(literal) for of in needs for literal in of)
    ]
    return [tuple(map(frozenset, needs)) for needs in bare if max(map(strength, needs), default=0) >= SHORT]


def holds(low: bytes, needs: Needs) -> bool:
    """Whether a folded text contains one literal of each set."""
    return all(any(map(low.__contains__, literals)) for literals in needs)


def _parts(elements: Iterable[tuple[Any, Any]]) -> list[Part]:
    """What a match holds, in its order. ``elements``: as `re` has parsed them."""
    parts: list[Part] = []
    for kind, value in elements:
        if kind in (op.LITERAL, op.IN):
            letters = {
                chr(code).lower() if one is op.LITERAL and 32 <= code < 127 else None
                for one, code in (value if kind is op.IN else [(kind, value)])
            }
            parts.append(letters.pop() if len(letters) == 1 else None)
        elif kind is op.BRANCH:
            parts.append([_parts(one) for one in value[1]])
        elif kind in (op.SUBPATTERN, op.ATOMIC_GROUP):
            parts += _parts(value[-1] if kind is op.SUBPATTERN else value)
        elif kind is op.ASSERT:  # lookahead begins here, and lookbehind ends here
            ahead, inside = value[0] > 0, _parts(value[1])
            parts += [*inside, None] if ahead else [None, *inside]
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            parts += [*(_parts(value[2]) if value[0] else ()), None]
        elif kind not in (op.AT, op.ASSERT_NOT):
            parts.append(None)
    return parts


def _spread(parts: list[Part]) -> list[list[Part]]:
    """The sequence, or one for each of its alternatives if it ends in some, or if a part of it needs only
    short literals."""
    if parts and isinstance(parts[-1], list):
        return [whole for one in parts[-1] for whole in _spread([*parts[:-1], *one])]
    for at, part in enumerate(parts):
        if isinstance(part, list) and max(map(strength, _one_of(part)), default=0) < SHORT:
            return [[*parts[:at], *one, *parts[at + 1 :]] for one in part]
    return [parts]


def _needs(parts: list[Part]) -> Needs:
    """Sets of literals that a sequence needs."""
    runs, needs = [""], []
    for part in parts:
        if isinstance(part, str):
            runs[-1] += part
        else:
            runs.append("")
            needs += _one_of(part or [])
    return (*needs, *(frozenset([run.encode()]) for run in runs if run))


def _one_of(branches: list[list[Part]]) -> Needs:
    """One literal of the best sets that each alternative needs."""
    each = [_needs(parts) for parts in branches]
    return (frozenset().union(*(max(needs, key=strength) for needs in each)),) if each and all(each) else ()


def strength(literals: frozenset[bytes]) -> int:
    """Length of the shortest literal: the longer, the fewer lines contain one."""
    return min(map(len, literals))


@dataclasses.dataclass(eq=False)
class Matcher:
    """Matches lines against many expressions at once. Each alternative is a branch; a line is examined
    closely if it contains the rarest literal that a branch needs. Hyperscan finds these literals in one
    pass; without it each is searched separately.

    ``expressions``: id -> Python regular expression, for ``str``; ``needs``: what a line must hold for each
    of its alternatives. No expression is compiled at first.
    """

    expressions: Mapping[str, str]
    needs: Callable[[str], Sequence[Needs]] = alternatives
    _always: set[int] = dataclasses.field(default_factory=set)
    # literal -> what else a line must hold
    _branches: dict[bytes, list[tuple[int, Needs]]] = dataclasses.field(
        default_factory=lambda: defaultdict(list)
    )
    _asked: int = 0  # bytes so far
    _database: Any = None

    def __post_init__(self) -> None:
        self._ids = tuple(self.expressions)
        for number, expression in enumerate(self.expressions.values()):
            for branch in self.needs(expression):
                rarest, *others = sorted(branch, key=strength, reverse=True) or [()]
                self._always |= set() if rarest else {number}
                for literal in rarest:
                    self._branches[literal].append((number, tuple(others)))
        self._literals = [*self._branches]
        self._words = [
            max(literal.translate(_LETTERS).split(), key=len, default=b"") for literal in self._literals
        ]

    def may_match(self, lines: Sequence[bytes]) -> dict[int, tuple[str, ...]]:
        """Index of a line -> ids, in the given order, of all expressions that match it, and a few others.
        Includes what matches in any part of the line as `re` sees it, decoded from UTF-8 with U+FFFD for
        invalid bytes. Lines without any are left out. Time grows linearly with the length of a line."""
        rows = [folded(line) for line in lines]
        ends = list(itertools.accumulate((len(row) + 1 for row in rows), initial=0))
        candidates: dict[int, set[int]] = {
            at: {*self._always} for at in range(len(rows) if self._always else 0)
        }
        for literal, at in self._hits(b"\n".join(rows), ends):
            for number, others in self._branches[literal]:
                if holds(rows[at], others):
                    candidates.setdefault(at, set()).add(number)
        return {
            at: tuple(self._ids[number] for number in sorted(candidates[at])) for at in sorted(candidates)
        }

    def pattern(self, id: str) -> re.Pattern[str]:
        """The compiled expression, compiled at first use. KeyError for an unknown id."""
        return compiled(self.expressions[id])

    def _hits(self, text: bytes, ends: list[int]) -> set[tuple[bytes, int]]:
        """(literal, index of the line) of each literal found. A line may hold one a million times."""
        before = self._asked
        self._asked += len(text) + len(self._literals)
        if self._literals and before < HYPERSCAN_FROM <= self._asked:
            self._database = _compiled(self._literals)
        if self._database is None:
            words = b" ".join({*text.translate(_LETTERS).split()})
            return {
                (literal, bisect.bisect_right(ends, place.start()) - 1)
                for literal, word in zip(self._literals, self._words)
                if word in words
                for place in compiled(re.escape(literal)).finditer(text)
            }
        hits: set[tuple[bytes, int]] = set()
        self._database.scan(
            text,
            match_event_handler=lambda number, start, end, flags, hits: hits.add(
                (self._literals[number], bisect.bisect_left(ends, end) - 1)
            ),
            context=hits,
        )
        return hits


def _compiled(literals: Sequence[bytes]) -> Any:
    """A hyperscan database of literals; None without hyperscan."""
    try:
        import hyperscan  # late: reading commands must start soon
    except (ImportError, OSError):  # no wheel for this machine, or one that its processor cannot run
        return None
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=[b"".join(b"\\x%02x" % byte for byte in literal) for literal in literals],
        ids=range(len(literals)),
        elements=len(literals),
        flags=[0] * len(literals),
    )
    return database
