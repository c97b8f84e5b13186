"""What speaks for a cause: expressions on lines, and a fast way to ask which of them a line matches."""

from __future__ import annotations

import dataclasses
import functools
import re
import re._constants as sre
import re._parser as parser
from collections.abc import Iterable
from typing import Any

from nccl_runbook.knowledge import table

try:
    import ahocorasick_rs  # the extra "fast": all literals in one pass, ten times quicker where no two lines are alike
except ImportError:
    ahocorasick_rs = None

_WORDS = {
    "<hang>": r"\bhang|\bhung|\bstuck|deadlock|\bstall|\bfreez|\bfroze|\bwedg|\bspin(?:s|ning)?\b|"
    r"never (?:returns?|ends?|completes?|finish|reach)|no progress|wait(?:s|ing)? for ?ever|blocks? (?:in|at|for ?ever)",
    "<timeout>": r"WorkNCCL\(|watchdog|timed? ?out|checkTimeout|Some NCCL operations have failed|store->get|Timeout waiting for key",
}
# an exception that only echoes what another rank did
ECHO = re.compile(
    r"Dist(?:Backend|Network|Store)Error|NCCL (?:error|communicator)|[Cc]onnection (?:reset|closed|refused)|Broken pipe|ChildFailedError|"
    r"KeyboardInterrupt|SystemExit|SIGTERM|watchdog|timed? ?out|terminate called|Socket Timeout|store->get|ProcessExitedException|"
    r"RayTaskError|GuardError|EOFError|Aborted|RendezvousC|TimeoutError"
)
# the line of a guard that failed (nccl_guards.py): what is below was measured by the job itself
GUARD = r'NCCL_GUARD \{"schema":\d+,"guard":"(\w+)","ok":false,[^\n]*?"cause":"([a-z0-9-]+)"'
NETWORK = r"NCCL INFO Using network \w+"
FIRST_CALL = r"NCCL INFO \w+: opCount 0 sendbuff"  # NCCL_DEBUG_SUBSYS=COLL; what both tell is in rules/triage_ranks.py
_SHORTEST = 3  # a literal of two characters is in every line
_OFTEN = " etaoinsrhldcumfpgwyb0123456789.:-_/vkxjqz"  # by how often logs hold them


@dataclasses.dataclass(frozen=True)
class Clue:
    """One row of clues.toml: ``line`` on one line, each of ``also`` on some line or in the reporter's words, none of ``without``.

    ``status``: the most that this clue alone allows; established only where the line is the fault itself.
    """

    cause: str
    line: str
    status: str
    also: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@functools.cache
def clues() -> tuple[Clue, ...]:
    """Every clue in the order of the table."""
    return tuple(
        Clue(r["cause"], _spelt(r["line"]), r["status"], tuple(map(_spelt, r.get("also", ()))), tuple(map(_spelt, r.get("not", ()))))
        for r in table("clues")["clue"]
    )


def _spelt(expression: str) -> str:
    for short, words in _WORDS.items():
        expression = expression.replace(short, words)
    return expression


def complains(words: str) -> bool:
    """Whether a reporter's words say that something hung, died or failed."""
    return bool(compiled(_spelt("(?i)<hang>|\\bcrash|\\bfails?\\b")).search(words))


@functools.cache
def compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


@functools.cache
def matcher() -> Matcher:
    """The matcher of every clue's own line."""
    return Matcher(dict.fromkeys([*(c.line for c in clues()), FIRST_CALL, NETWORK, GUARD]))


class Matcher:
    """Which of many expressions match a line. Most lines hold none of the literals that the expressions need, which is asked first."""

    def __init__(self, expressions: Iterable[str]) -> None:
        self._by_literal: dict[str, list[str]] = {}
        self._always: list[str] = []
        for expression in expressions:
            literals = needed(expression)
            for literal in literals:
                self._by_literal.setdefault(literal, []).append(expression)
            if not literals:
                self._always.append(expression)
        self._literals = tuple(self._by_literal)
        self._by_three: dict[tuple[int, ...], list[str]] = {}  # the rarest three characters of each literal
        for literal in self._literals:
            self._by_three.setdefault(max(_threes(literal.encode()), key=_rare), []).append(literal)
        self._fast = ahocorasick_rs.AhoCorasick(self._literals) if ahocorasick_rs else None

    def literals_in(self, text: bytes) -> tuple[str, ...]:
        """The literals that stand anywhere in ``text``, ASCII: only they need to be asked for in its lines."""
        low = text.lower()
        if self._fast:
            found = {n for n, _, _ in self._fast.find_matches_as_indexes(low.decode("ascii"), overlapping=True)}
            return tuple(n for i, n in enumerate(self._literals) if i in found)
        return tuple(n for three in self._by_three.keys() & _threes(low) for n in self._by_three[three] if n.encode() in low)

    def matching(self, line: str, literals: tuple[str, ...] | None = None) -> list[str]:
        """The expressions that match ``line``. ``literals``: those of the text around it, None for all."""
        low = line.lower()
        wanted = dict.fromkeys(self._always)
        for literal in self._literals if literals is None else literals:
            if literal in low:
                wanted.update(dict.fromkeys(self._by_literal[literal]))
        return [e for e in wanted if _may_match(e, low) and compiled(e).search(line)]


def _threes(text: bytes) -> set[tuple[int, ...]]:
    return set(zip(text, text[1:], text[2:]))


def _rare(three: tuple[int, ...]) -> tuple[int, ...]:
    return (sum(_OFTEN.find(chr(c)) % 50 for c in three), *three)


def stands_in(pattern: re.Pattern[str], text: str) -> bool:
    """Whether it stands in the text; the look-up of its literals spares most searches."""
    low = text.lower()
    return any(w in low for w in needed(pattern.pattern)) and bool(pattern.search(text))


def _may_match(expression: str, low: str) -> bool:
    """Whether the line holds what one branch of the expression needs: a few look-ups spare most searches."""
    for branch in _branches(expression):  # plain loops: this is asked a million times where no two lines are alike
        for literals in branch:
            for literal in literals:
                if literal in low:
                    break
            else:
                break
        else:
            return True
    return False


@functools.cache
def _branches(expression: str) -> tuple[tuple[frozenset[str], ...], ...]:
    """For each branch at the top: sets of literals, of each of which a matching line holds one."""
    sequence = list(parser.parse(expression))
    if len(sequence) == 1 and sequence[0][0] is sre.BRANCH:
        return tuple(tuple(_in_sequence(branch)) for branch in sequence[0][1][1])
    return (tuple(_in_sequence(sequence)),)


@functools.cache
def needed(expression: str) -> frozenset[str]:
    """Lower-case literals of which a matching line holds at least one (lower-cased); empty where none can be named."""
    return _of_sequence(parser.parse(expression)) or frozenset()


def _of_sequence(sequence: Iterable[Any]) -> frozenset[str] | None:
    """The best set among the elements: the one whose shortest literal is longest."""
    return max(_in_sequence(sequence), key=lambda s: (min(map(len, s)), -len(s)), default=None)


def _in_sequence(sequence: Iterable[Any]) -> list[frozenset[str]]:
    """Every set of literals that the elements need."""
    found: list[frozenset[str]] = []
    run = ""
    for code, value in [*sequence, (None, None)]:
        if code is sre.LITERAL and chr(value).isascii():
            run += chr(value).lower()
            continue
        if len(run) >= _SHORTEST:
            found.append(frozenset([run]))
        run = ""
        inner = _of_element(code, value)
        if inner:
            found.append(inner)
    return found


def _of_element(code: Any, value: Any) -> frozenset[str] | None:
    if code is sre.SUBPATTERN:
        return _of_sequence(value[3])
    if code is sre.BRANCH:
        each = [_of_sequence(branch) for branch in value[1]]
        return None if any(e is None for e in each) else frozenset().union(*each)
    if code in (sre.MAX_REPEAT, sre.MIN_REPEAT) and value[0] > 0:
        return _of_sequence(value[2])
    return None
