"""What speaks for a cause: expressions on lines, and a fast way to ask which of them a line matches."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import itertools
import re
import re._constants as sre
import re._parser as parser
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nccl_runbook.knowledge import table

try:
    import ahocorasick_rs  # the extra "fast": all literals in one pass, ten times quicker where no two lines are alike
except ImportError:
    ahocorasick_rs = None

# an exception that only echoes what another rank did
ECHO = re.compile(
    r"Dist(?:Backend|Network|Store)Error|NCCL (?:[Ee]rror|communicator)|[Cc]onnection (?:reset|closed|refused)|Broken pipe|"
    r"ChildFailedError|KeyboardInterrupt|SystemExit|SIGTERM|watchdog|[Tt]imed? ?out|terminate called|Socket Timeout|store->get|"
    r"ProcessExitedException|RayTaskError|GuardError|EOFError|Aborted|RendezvousC|TimeoutError"
)
# what follows the exception that ends a rank: another in its chain, and what torch (>= 2.4) says as the process ends
LAST_WORDS = re.compile(r"^\s*(?:\[\w+\]:\s*)?[\w.]*(?:Error|Exception)(?::\s|$)|destroy_process_group\(\) was not called")
LOST = re.compile(r"[Cc]onnection (?:reset|closed)|Broken pipe")
# the line of a guard that failed (nccl_guards.py): what is below was measured by the job itself
GUARD = r'NCCL_GUARD \{"schema":\d+,"guard":"(\w+)","ok":false,[^\n]*?"cause":"([a-z0-9-]+)"'
NETWORK = r"NCCL INFO Using network \w+"
# a job ends with it, and it is no exception
ABORT = r"Duplicate GPU detected|Multiple [Rr]anks \w{3,8} using the same GPU|(?:NCCL|CUDA) failure \S+:\d|Check failed: |\(core dumped\)"
# how many ranks were asked for on a host, and how many GPUs the reporter or the job names there
ASKED = r"(?i)(?:(?<!\S)-np?|nproc[-_]per[-_]node|num[-_ ]processes|nprocs|tasks[-_]per[-_]node|parallel[-_]size|--tp)\W{1,3}(\d{1,4})\b"
_CARDS = r"(one|two|three|four|single|[1-9]\d?)[- ](?:x )?(?:NVIDIA |GeForce )?(?:\w{1,12} )?(?:GPUs?|cards?|[AHV]100s?)\b"
PRESENT = rf"(?i)CUDA_VISIBLE_DEVICES\W{{1,3}}((?:\d{{1,2}},)*\d{{1,2}})\b|\b{_CARDS}"
_SHORTEST = 3  # a literal of two letters is in every line
_NEEDLE = 8  # letters: longer ones single out hardly any more lines, and take longer to prepare
_FREQUENT = " etaoinsrlhdc0123456789umfpgwybv.,_/:-=kxjqz"  # in English and in logs, the commonest first; others are rare
_FOLDED = ((b"\xc4\xb0", b"i"), (b"\xc4\xb1", b"i"), (b"\xc5\xbf", b"s"), (b"\xe2\x84\xaa", b"k"))
_DIGITS = frozenset("0123456789")
_LOWER = {number: chr(number).lower() for number in range(128)}
# words that logs are full of, so that they single no line out
_COMMON = re.compile(
    r"rank|node|gpu|error|fail|work|time|this|only|some|with|when|while|other|more|many|none|one|any|all|key|model|tensor|param|data|"
    r"process|host|index|read|check|cach|load|sav|slow|run|start|local|device|step|batch|loss|sys|map|dist|direct|weight|port|is|out|call|"
    r"onnect|connect(?:ion)?|fault|match|fine|works?|workers|version|refused|timeout|supported|backend|disabl|enabled|require|manager|"
    r"torch|n?ccl|c?uda|must|should|needs to|name|work|in|not|--|\d\.|.?"
)


@dataclasses.dataclass(frozen=True)
class Clue:
    """One row of clues.toml: ``line`` on one line, each of ``also`` on some line or in the reporter's words, none of ``without``.

    ``status``: the most that this clue alone allows; established only where the line is the fault itself. ``words``: a reporter says it,
    no program.
    """

    cause: str
    line: str
    status: str
    also: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    words: bool = False


@functools.cache
def clues() -> tuple[Clue, ...]:
    """Every clue in the order of the table."""
    rows = table("clues")["clue"]
    beside = [[tuple(map(_spelt, r.get(name, ()))) for name in ("also", "not")] for r in rows]
    return tuple(Clue(r["cause"], _spelt(r["line"]), r["status"], *more, r.get("words", False)) for r, more in zip(rows, beside))


@functools.cache
def hints() -> dict[str, dict[str, float]]:
    """Expression -> what a match adds to each cause that it makes likelier."""
    return {"(?i)" + _spelt(row["words"]): row["causes"] for row in table("hints")["hint"]}


def _spelt(expression: str) -> str:
    for short, words in table("clues")["words"].items():
        expression = expression.replace(short, words)
    return expression


def says(words: str, what: str) -> bool:
    """Whether a reporter's words say this, in the short forms of the table."""
    return bool(compiled(_spelt("(?i)" + what)).search(words))


@functools.cache
def compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


@functools.cache
def matcher() -> Matcher:
    """The matcher of every clue's own line."""
    return Matcher([*printed(), *spoken()])


def printed() -> list[str]:
    """Every expression that is asked of every line that a job printed."""
    return list(dict.fromkeys([*(c.line for c in clues() if not c.words), NETWORK, GUARD, ABORT]))


def spoken() -> list[str]:
    """Those of which only a reporter's words, or a short log, are asked."""
    return list(dict.fromkeys([*(c.line for c in clues() if c.words), *hints(), ASKED, PRESENT]))


class Matcher:
    """Which of many expressions match a line. Most lines hold none of the literals that the expressions need: one pass over many lines
    finds those that do.

    ``hints``: literals for expressions whose own are too short, of which a matching line holds one.
    """

    def __init__(self, expressions: Iterable[str], hints: Mapping[str, Iterable[str]] = types.MappingProxyType({})) -> None:
        wanted: dict[bytes, dict[str, None]] = {}
        self._always: list[str] = []
        for expression in expressions:
            literals = hints.get(expression) or needed(expression)
            for literal in literals:
                wanted.setdefault(_needle(literal), {})[expression] = None
            if not literals:
                self._always.append(expression)
        # the longest needle at a place stands for those that it begins with
        own = {n: [(e, _beside(e, n, e in hints)) for e in expressions] for n, expressions in wanted.items()}
        self._wanted = {n: [row for end in range(1, len(n) + 1) for row in own.get(n[:end], ())] for n in wanted}
        self._needles = tuple(wanted)
        by_letter = itertools.groupby(sorted(wanted), lambda n: n[:1])  # an expression that begins with one letter is searched for fastest
        self._patterns = [(letter, re.compile(re.escape(letter) + b"(?=(%s))" % _tree(list(words)))) for letter, words in by_letter]
        self._fast = ahocorasick_rs.BytesAhoCorasick(self._needles) if ahocorasick_rs and wanted else None

    def may_match(self, lines: Sequence[bytes]) -> dict[int, list[str]]:
        """Index of a line -> the expressions that it may match; lines that match none of them are mostly left out."""
        text, found = folded(b"\n".join(lines)), {i: list(self._always) for i in range(len(lines) if self._always else 0)}
        ends = list(itertools.accumulate([len(line) + 1 for line in text.split(b"\n")], initial=-1))
        needles_in: dict[int, set[bytes]] = collections.defaultdict(set)
        for start, needle in self._hits(text):
            needles_in[bisect.bisect_left(ends, start) - 1].add(needle)
        for at, needles in needles_in.items():
            low = text[ends[at] + 1 : ends[at + 1]]
            may = [e for n in needles for e, branches in self._wanted[n] if not branches or _may_match(branches, low)]
            if may:
                found[at] = [*found.get(at, ()), *dict.fromkeys(may)]
        return found

    def _hits(self, text: bytes) -> Iterator[tuple[int, bytes]]:
        """Where a needle begins; overlapping ones as well."""
        if self._fast:
            yield from ((start, self._needles[i]) for i, start, _ in self._fast.find_matches_as_indexes(text, overlapping=True))
            return
        for letter, pattern in self._patterns:
            for m in pattern.finditer(text):
                yield m.start(), letter + m[1]

    def matching(self, line: str) -> list[str]:
        """The expressions that match ``line``."""
        return [e for e in self.may_match([line.encode("utf-8", "replace")]).get(0, ()) if compiled(e).search(line)]


def folded(raw: bytes) -> bytes:
    """Lower case as an expression that ignores case takes it: four letters beyond ASCII count as i, s and k."""
    low = raw.lower()
    for letter, plain in () if raw.isascii() else _FOLDED:
        low = low.replace(letter, plain)
    return low


@functools.cache
def _needle(literal: str) -> bytes:
    """What is searched for where a line must hold ``literal``: from its rarest letter on, and no longer than finds few other lines."""
    start = max(range(max(1, len(literal) - _NEEDLE + 1)), key=lambda at: _FREQUENT.find(literal[at]) % len(_FREQUENT))
    return literal[start : start + _NEEDLE].encode()


def _tree(words: list[bytes]) -> bytes:
    """An expression for what may follow the first letter: a tree, so that a search leaves it at the first letter that fits none."""
    tree: dict = {}
    for word in words:
        node = tree
        for letter in word[1:].decode():
            node = node.setdefault(letter, {})
        node[""] = {}
    return _branch(tree).encode()


def _branch(node: dict) -> str:
    parts = [re.escape(letter) + _branch(inner) for letter, inner in node.items() if letter]
    return f"(?:{'|'.join(parts)})" + "?" * ("" in node) if parts else ""


def _may_match(branches: tuple[tuple[frozenset[bytes], ...], ...], low: bytes) -> bool:
    """Whether the line holds what one branch of an expression needs: a few look-ups spare most searches."""
    for branch in branches:  # plain loops: this is asked a million times where no two lines are alike
        for literals in branch:
            for literal in literals:
                if literal in low:
                    break
            else:
                break
        else:
            return True
    return False


def _beside(expression: str, needle: bytes, hinted: bool) -> tuple[tuple[frozenset[bytes], ...], ...]:
    """What a line must hold beside the needle, for each branch that it stands for; empty if nothing."""
    branches = _branches(expression)
    own = branches if hinted else [branch for branch in branches if any(_needle(n) == needle for literals in branch for n in literals)]
    beside = {tuple(frozenset(map(str.encode, of)) for of in branch if not any(n.encode() in needle for n in of)) for branch in own}
    return () if () in beside else tuple(beside)


@functools.cache
def _branches(expression: str) -> list[list[frozenset[str]]]:
    """For each branch at the top: sets of literals, of each of which a matching line holds one."""
    sequence = _parsed(expression)
    branches = sequence[0][1][1] if len(sequence) == 1 and sequence[0][0] is sre.BRANCH else [sequence]
    return [_in_sequence(branch, 1) for branch in branches]


@functools.cache
def needed(expression: str) -> frozenset[str]:
    """Lower-case literals of which a matching line holds at least one (lower-cased); empty where none can be named."""
    return _of_sequence(_parsed(expression), 2) or frozenset()


@functools.cache
def _parsed(expression: str) -> list[Any]:
    return list(parser.parse(expression))


def _of_sequence(sequence: Iterable[Any], shortest: int) -> frozenset[str] | None:
    """The best set among the elements: without common words, and the one whose shortest literal is longest."""
    return max(_in_sequence(sequence, shortest), key=_rare, default=None)


def _rare(literals: frozenset[str]) -> tuple[int, int, int]:
    return -sum(bool(_COMMON.fullmatch(n.strip())) for n in literals), min(map(len, literals)), -len(literals)


def _in_sequence(sequence: Iterable[Any], shortest: int) -> list[frozenset[str]]:
    """Every set of literals that the elements need, none shorter than ``shortest``; a single letter is none."""
    found: list[frozenset[str]] = []
    run = ""
    for code, value in [*sequence, (None, None)]:
        letter = _LOWER.get(value, "") if code is sre.LITERAL else _letter(code, value)
        if letter:
            run += letter
            continue
        run = run.lstrip()  # a blank is everywhere, and no literal shall begin with one
        if len(run) >= _SHORTEST or len(run) == 2 and not run.isalpha():
            found.append(frozenset([run]))
        run = ""
        inner = _of_element(code, value, shortest)
        if inner:
            found.append(inner)
    return [s for s in found if min(map(len, s)) >= shortest]


def _letter(code: Any, value: Any) -> str:
    """The letter that stands here, in whichever case; "" where several may."""
    if code is sre.IN and len(value) == 2 and value[0][0] is value[1][0] is sre.LITERAL:
        one, other = (chr(letter).lower() for _, letter in value)
        return one if one == other and one.isascii() else ""
    return ""


def _of_element(code: Any, value: Any, shortest: int) -> frozenset[str] | None:
    if code is sre.SUBPATTERN:
        return _of_sequence(value[3], shortest)
    if code is sre.BRANCH:
        each = [_of_sequence(branch, shortest) for branch in value[1]]
        return None if any(e is None for e in each) else frozenset().union(*each)
    if code in (sre.MAX_REPEAT, sre.MIN_REPEAT) and value[0] > 0:
        return _of_element(*value[2][0], shortest) if len(value[2]) == 1 else _of_sequence(value[2], shortest)
    return _DIGITS if code is sre.IN and value == [(sre.CATEGORY, sre.CATEGORY_DIGIT)] else None
