"""Which of many regular expressions may match a line of a log.

    matcher = Matcher({"oom": r"CUDA out of memory", "wait": r"(?i)timed? ?out"})
    matcher.may_match([b"all is well", b"[rank3]: Timed out"])     # {1: ("wait",)}
    matcher.pattern("wait").search("Timed out")

No expression that matches is left out, and few that do not match are in. The caller searches with
``pattern`` in the text of interest: the line, or a part of it, such as its text without a prefix.

The literals that a line must hold are read from the expression itself. The reader is conservative. It leaves out what it
does not understand, so a result may be too weak but never wrong. Literals are in lower case: a line is folded before they
are looked for.
"""

import bisect
import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# What `re` takes for i, s and k when case is ignored. No other letter beyond ASCII matches an ASCII letter.
FOLDED = ((b"\xc4\xb0", b"i"), (b"\xc4\xb1", b"i"), (b"\xc5\xbf", b"s"), (b"\xe2\x84\xaa", b"k"))
TOKENS = re.compile(
    r"[\w :=/'\",<>@%&;~-]{2,}(?![*+?{])|"
    r"\\(?:x..|u.{4}|U.{8}|N\{[^}]*\}|\d{1,3}|.)|\[\^?\]?(?:\\.|[^\]\\])*\]|"
    r"\(\?(?:[a-zA-Z]+\)|#[^)]*\)|P=\w+\)|P?<\w+>|[a-zA-Z-]*:|<?[=!]|>|\(\w+\))|"
    r"(?:[*+?]|\{(?:\d+,?|,)\d*\})[?+]?|.", re.DOTALL)
_OPENS = re.compile(r"\((?:\?.*[:>=!]|\?\(.*)?$")
_NO_WIDTH_GROUPS = {"(?=": "", "(?!": "", "(?<!": ""}  # a look behind is read with what follows it
_UNREAD = re.compile(r"\(\?(?:<?!|\()")  # what must not be there, a condition
_UNSPREAD = re.compile(r"\(\?(?:<?[=!]|\()")
_QUANTIFIER = re.compile(r"[*+?]|\{(?:\d+,?|,)\d*\}")
_NO_WIDTH = re.compile(r"\\[AbBZz]$|[$^]$|\(\?(?!P=)")
_PLAIN = re.compile(r"([^.\\\[]|[^\\\[(]{2,})$|\\([^\w])$|\[([^\\^])\]$", re.ASCII | re.DOTALL)
_BOTH_CASES = re.compile(r"\[([a-zA-Z])([a-zA-Z])\]$")
SHORT = 3  # bytes: shorter literals are in most lines
compiled = functools.cache(re.compile)
Needs = tuple[frozenset[bytes], ...]
Group = tuple[str, list[list[list[Any]]]]  # opening token, alternatives
# Bytes asked before hyperscan is used. It takes 40 ms to load and to compile, and then finds 1,600 literals in 0.5 MB
# within 10 ms; bytes.find takes 240 ms for that (CPU time on a busy machine).
HYPERSCAN_FROM = 100_000
_LETTERS = bytes(byte if chr(byte) in "abcdefghijklmnopqrstuvwxyz" else 32 for byte in range(256))


def folded(raw: bytes) -> bytes:
    """The text in lower case, with i, s and k for the four letters that match them when case is ignored."""
    low = raw.lower()
    for letter, plain in FOLDED if not raw.isascii() else ():
        low = low.replace(letter, plain)
    return low


def alternatives(expression: str) -> list[Needs]:
    """For each alternative of the expression: sets of literals. A line that matches holds one of each set.

    No set: the alternative may match any line. Cost: some 40 us.
    """
    if re.search(r"\(\?[a-z]*x", expression):  # the verbose form has comments, and blanks that mean nothing
        return [()]
    return [_needs(elements) for branch in parsed(expression) for elements in _spread(branch)]


def holds(low: bytes, needs: Needs) -> bool:
    """Whether a folded text holds one literal of each set."""
    for literals in needs:  # plain loops: asked half a million times for a log of 5 MB
        for literal in literals:
            if literal in low:
                break
        else:
            return False
    return True


def parsed(expression: str) -> list[list[list[Any]]]:
    """The alternatives, each a list of [element, quantifier].

    An element is a token or a Group.
    """
    opened: list[Group] = [("", [[]])]
    for token in TOKENS.findall(expression):
        alternatives = opened[-1][1]
        if _OPENS.match(token):
            opened.append((token, [[]]))
        elif token == ")":
            group = opened.pop()
            opened[-1][1][-1].append([group, ""])
        elif token == "|":
            alternatives.append([])
        elif _QUANTIFIER.match(token) and alternatives[-1]:
            alternatives[-1][-1][1] = token
        else:
            alternatives[-1].append([token, ""])
    return opened[0][1]


def _spread(elements: list[list[Any]]) -> list[list[list[Any]]]:
    """The sequence; if a group in it needs only short literals, a sequence for each of its alternatives."""
    for at, (element, quantifier) in enumerate(elements):
        if isinstance(element, str) or quantifier or _UNSPREAD.match(element[0]) or len(element[1]) == 1:
            continue
        if max(map(strength, _of_group(element)), default=0) < SHORT:
            return [[*elements[:at], *inner, *elements[at + 1 :]] for inner in element[1]]
    return [elements]


def _needs(elements: list[list[Any]]) -> Needs:
    """Sets of literals that a sequence needs."""
    needs: list[frozenset[bytes]] = []
    runs = [""]
    for element, quantifier in elements:
        absent = quantifier[:1] in ("*", "?") or quantifier[:2] in ("{0", "{,")
        opening = "" if isinstance(element, str) else element[0]
        letters = _NO_WIDTH_GROUPS.get(opening) if opening else _letters(element)
        if opening and not absent:
            needs += _of_group(element)
        runs[-1] += "" if absent else letters or ""
        if letters is None or quantifier:
            runs.append(_behind(element) if opening == "(?<=" and not absent else "")
    return (*needs, *(frozenset([run.encode()]) for run in runs if run))


def _of_group(group: Group) -> Needs:
    """What every alternative of a group needs: all of a single one, else one literal of the best sets."""
    each = [] if _UNREAD.match(group[0]) else [_needs(elements) for elements in group[1]]
    if len(each) == 1:
        return each[0]
    return (frozenset().union(*(max(needs, key=strength) for needs in each)),) if each and all(each) else ()


def _behind(group: Group) -> str:
    """The text that a look behind needs before what follows; empty if it may be one of several texts."""
    elements = group[1][0] if len(group[1]) == 1 else []
    plain = all(isinstance(element, str) and not quantifier for element, quantifier in elements)
    letters = [_letters(element) for element, _ in elements] if plain else [None]
    return "" if None in letters else "".join(letters)


def strength(literals: frozenset[bytes]) -> int:
    """The length of the shortest literal: the higher, the fewer lines hold one of them."""
    return min(map(len, literals))


@functools.cache
def _letters(token: str) -> str | None:
    """The folded text that a token stands for; "" if it has no width, None if it stands for several texts."""
    if _NO_WIDTH.match(token):
        return ""
    if (both := _BOTH_CASES.match(token)) and both[1].lower() == both[2].lower():
        return both[1].lower()
    plain = _PLAIN.match(token)
    letters = plain and next(filter(None, plain.groups()))
    return letters.lower() if letters and letters.isascii() else None


class Matcher:
    """Asks lines for many expressions at once.

    Every alternative of an expression is a branch. A line is looked at closely if it holds the rarest literal that a
    branch needs. Hyperscan finds these literals in one pass; without it, each is searched for by itself.
    """

    def __init__(self, expressions: Mapping[str, str], needs: Callable[[str], Sequence[Needs]] = alternatives) -> None:
        """``expressions``: id -> Python regular expression, for ``str``; ``needs``: what a line must hold for each of
        its alternatives. No expression is compiled yet."""
        self._ids, self._expressions = tuple(expressions), dict(expressions)
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
        return compiled(self._expressions[id])

    def _hits(self, text: bytes) -> Iterator[tuple[bytes, int]]:
        """Each literal, and where it begins; of those that overlap themselves at least one a line."""
        if self._literals and self._asked < HYPERSCAN_FROM <= self._asked + len(text):
            self._database = _compiled(self._literals)
        self._asked += len(text)
        if self._database is None:
            words = b" ".join({*text.translate(_LETTERS).split()})
            return ((literal, at) for literal, word in zip(self._literals, self._words) if word in words for at in _places(literal, text))
        ends: list[tuple[int, int]] = []
        self._database.scan(text, match_event_handler=lambda number, start, end, flags, ends: ends.append((number, end)), context=ends)
        return ((self._literals[number], end - len(self._literals[number])) for number, end in ends)


def _places(literal: bytes, text: bytes) -> Iterator[int]:
    """The place where the literal begins: the first in each line."""
    at = text.find(literal)
    while at >= 0:
        yield at
        line_end = text.find(b"\n", at)
        at = text.find(literal, line_end) if line_end >= 0 else -1


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
