"""What speaks for a cause: expressions on lines, and a fast way to ask which of them a line matches."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import itertools
import re
import types
from collections.abc import Iterable, Mapping, Sequence

from nccl_runbook.causes.toml import table, worked_out

try:
    import ahocorasick_rs  # the extra "fast": all literals in one pass, ten times quicker where no two lines are alike
except ImportError:
    ahocorasick_rs = None

# an exception that only echoes what another rank did
ECHO = re.compile(
    r"Dist(?:Backend|Network|Store)Error|NCCL (?:[Ee]rror|communicator)|[Cc]onnection (?:reset|closed|refused)|Broken pipe|"
    r"ChildFailedError|KeyboardInterrupt|SystemExit|SIGTERM|watchdog|[Tt]imed? ?out|terminate called|Socket Timeout|store->get|"
    r"ProcessExitedException|RayTaskError|GuardError|EOFError|Aborted|RendezvousC|TimeoutError")
# what follows the exception that ends a rank: another in its chain, and what torch (>= 2.4) says as the process ends
LAST_WORDS = re.compile(r"^\s*(?:\[\w+\]:\s*)?[\w.]*(?:Error|Exception)(?::\s|$)|destroy_process_group\(\) was not called")
LOST = re.compile(r"[Cc]onnection (?:reset|closed)|Broken pipe")
# the line of a guard that failed (nccl_guards.py): what is below was measured by the job itself
GUARD = r'NCCL_GUARD \{"schema":\d+,"guard":"(\w+)","ok":false,[^\n]*?"cause":"([a-z0-9-]+)"'
NETWORK = r"NCCL INFO Using network \w+"
ALONE = r"#\s+Rank +0 Group +0 Pid +\d+ on +([\w.-]{1,60})"  # nccl-tests: each job has one such rank
RESULT = r"#\s+(?:Avg bus bandwidth|Out of bounds values)"  # nccl-tests: the end of a run
SMI = r"(?:^|\|)\s*(\d{1,2})\s+(?:N/A\s+N/A\s+)?(\d{2,8})\s+C\s[^\n]*MiB"  # nvidia-smi: GPU and pid
CHANNELS = r"\b(\d+ coll channels, \d+ collnet channels, \d+ nvls channels, \d+ p2p channels)\b"  # NCCL >= 2.18
# a job ends with it, and it is no exception
ABORT = (r"Duplicate GPU detected|Multiple [Rr]anks \w{3,8} using the same GPU|(?:NCCL|CUDA) failure \S+:\d|Check failed: |"
    r"\(core dumped\)|Got completion \w[^\n]*status=[1-9]|[Ee]xited with exit code [1-9]|\bCANCELLED AT |exited on signal [1-9]|"
    r"terminated with (?:non-zero )?exit code [1-9]|A worker died or was killed|EngineCore encountered a fatal|double free or corruption|"
    r"\d Killed {6}|std::bad_alloc|\*\*\* Aborted at |(?:exit status|Exit Code:) [1-9]|Application startup failed|OOMKilled|"
    r"sigkill_handler\] \['|NCCL INFO (?:enqueue|group)\.cc:\d+ -> [1-9]")
# how many ranks were asked for on a host, and how many GPUs the reporter or the job names there
ASKED = r"(?i)(?:(?<!\S)-np?|nproc[-_]per[-_]node|num[-_ ]processes|nprocs|tasks[-_]per[-_]node|parallel[-_]size|--tp)\W{1,3}(\d{1,4})\b"
_CARDS = r"(one|two|three|four|single|[1-9]\d?)[- ](?:x )?(?:NVIDIA |GeForce )?(?:\w{1,12} )?(?:GPUs?|cards?|[AHV]100s?)\b"
PRESENT = rf"(?i)CUDA_VISIBLE_DEVICES\W{{1,3}}((?:\d{{1,2}},)*\d{{1,2}})\b|\b{_CARDS}"
SLOW = frozenset(["net-socket-fallback", "gdr-disabled", "pcie-topology-limit", "straggler", "cpu-affinity", "gloo-carries-traffic"])
_NEEDLE = 8  # letters: longer ones single out hardly any more lines, and take longer to prepare
_GUARDED = 7  # letters: a shorter one would single out many lines without what stands before it
_ANCHORS = b"%[x/v:k1gbhpumdlros"  # the rarest first; nearly every literal holds one, and a text is searched once for each
_RARITY = bytes(_ANCHORS.find(letter) & 255 for letter in range(256))
_FOLDED = ((b"\xc4\xb0", b"i"), (b"\xc4\xb1", b"i"), (b"\xc5\xbf", b"s"), (b"\xe2\x84\xaa", b"k"))
_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]|[^\\\[()|]+", re.S)
# who asks whether something will go wrong, or repeats that a message says so, complains of nothing
_WONDERS = re.compile(
    r"(?i)(?:^|[.!?,;:]\s+(?:and |or )?)(?:(?:will|could|may) (?!any|some|there|this be why|you)[^.?!\n]{1,160}|(?:is|are) (?!any|there)"
    r"[^.,?!\n]{1,30})\?|\b(?:whether|(?:ask|sure|know|wonder) if) [^.?!\n]{0,60}\b(?:will|could|can|may|might)\b[^.?!\n]*|"
    r"\b(?:can|could|may|might) (?:potentially )?(?:cause|lead to|result in) (?:an? )?(?:\w{1,12} )?(?:hang|deadlock)\w{0,2}|"
    r"\b(?:speaks? of|(?:warnings?|one|messages?) (?:of|about)) (?:an? )?(?:\w{1,12} )?hang")


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

    @property
    def stays(self) -> bool:
        """Whether it counts though the job went on after its line: the fault itself does, what says that nothing is wrong, and what only
        slows it down."""
        return self.status == "established" or self.cause == "benign" or self.cause in SLOW


@functools.cache
def clues() -> tuple[Clue, ...]:
    """Every clue in the order of the table."""
    rows = table("knowledge/clues")["clue"]
    beside = [[tuple(map(_spelt, r.get(name, ()))) for name in ("also", "not")] for r in rows]
    return tuple(Clue(r["cause"], _spelt(r["line"]), r["status"], *more, r.get("words", False)) for r, more in zip(rows, beside))


@functools.cache
def hints() -> dict[str, dict[str, float]]:
    """Expression -> what a match adds to each cause that it makes likelier."""
    return {"(?i)" + _spelt(row["words"]): row["causes"] for row in table("knowledge/hints")["hint"]}


def _spelt(expression: str) -> str:
    for short, words in table("knowledge/clues")["words"].items():
        expression = expression.replace(short, words)
    return expression


def says(words: str, what: str) -> bool:
    """Whether a reporter's words say this, in the short forms of the table, and do not only ask it."""
    return bool(compiled(_spelt("(?i)" + what)).search(_WONDERS.sub(" ", words)))


@functools.cache
def compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


def printed() -> list[str]:
    """Every expression that is asked of every line that a job printed."""
    return list(dict.fromkeys([*(c.line for c in clues() if not c.words), NETWORK, GUARD, ABORT, ALONE, RESULT, CHANNELS, SMI]))


def spoken() -> list[str]:
    """Those of which only a reporter's words, or a short log, are asked."""
    return list(dict.fromkeys([*(c.line for c in clues() if c.words), *hints(), ASKED, PRESENT]))


class Matcher:
    """Which of many expressions match a line. Most lines hold none of the literals that the expressions need: one pass over many lines
    finds those that do.

    ``hints``: literals for expressions whose own are too short, of which a matching line holds one.
    """

    def __init__(self, expressions: Iterable[str], hints: Mapping[str, Iterable[str]] = types.MappingProxyType({})) -> None:
        self._always: list[str] = []
        own: dict[bytes, dict[str, list[tuple[frozenset[bytes], ...]]]] = collections.defaultdict(lambda: collections.defaultdict(list))
        words: dict[tuple[bytes, bytes], bytes] = {}
        for e in expressions:
            each = [(map(str.encode, hints[e]), apart(e))] if e in hints else [(one[0], [one]) for one in apart(e)] if all(apart(e)) else []
            self._always += [e] * (not each)
            for needle, whole, of in ((*_needle(literal), of) for literals, of in each for literal in literals):
                own[needle][e] += of
                words[needle, b"(?<=%s)" % re.escape(whole) if whole != needle else b""] = whole
        beside = {n: [(e, _beside(branches, n)) for e, branches in of.items()] for n, of in own.items()}
        # the longest needle at a place stands for those that it begins with
        self._wanted = {n: [row for end in range(1, len(n) + 1) for row in beside.get(n[:end], ())] for n in own}
        self._needles = [needle for needle, _ in words]
        by_letter = itertools.groupby(sorted(words, reverse=True), lambda word: word[0][:1])
        # an expression that begins with one letter is searched for fastest
        self._patterns = [(letter, re.compile(re.escape(letter) + b"(?=(%s))" % _tree([*of]))) for letter, of in by_letter]
        self._fast = ahocorasick_rs.BytesAhoCorasick([*words.values()]) if ahocorasick_rs and words else None

    def may_match(self, lines: Sequence[bytes]) -> dict[int, dict[str, None]]:
        """Index of a line -> the expressions that it may match; lines that match none of them are mostly left out."""
        text, found = folded(b"\n".join(lines)), {at: dict.fromkeys(self._always) for at in range(len(lines) if self._always else 0)}
        low = text.split(b"\n")
        ends = list(itertools.accumulate([len(line) + 1 for line in low], initial=-1))
        for needle, starts in self._hits(text).items():
            here = {bisect.bisect_left(ends, start) - 1 for start in starts}
            for expression, branches in self._wanted[needle]:
                for at in [at for at in here if may_match(branches, low[at])] if branches else here:
                    found.setdefault(at, {})[expression] = None
        return found

    def _hits(self, text: bytes) -> dict[bytes, list[int]]:
        """Where each needle begins; overlapping ones as well."""
        starts: dict[bytes, list[int]] = collections.defaultdict(list)
        if self._fast:
            for i, start, _ in self._fast.find_matches_as_indexes(text, overlapping=True):
                starts[self._needles[i]].append(start)
        for letter, pattern in () if self._fast else self._patterns:
            for m in pattern.finditer(text) if letter in text else ():
                starts[letter + m[1]].append(m.start())
        return starts


def folded(raw: bytes) -> bytes:
    """Lower case as an expression that ignores case takes it: four letters beyond ASCII count as i, s and k."""
    low = raw.lower()
    for letter, plain in (pair for pair in _FOLDED if pair[0][:1] in raw):  # one byte is found, or not, ten times sooner
        low = low.replace(letter, plain)
    return low


@functools.cache
def _needle(literal: bytes) -> tuple[bytes, bytes]:
    """What is searched for where a line must hold ``literal``: from its rarest letter on, no longer than finds few other lines; and the
    same with what stands before where that is short."""
    rarity = literal[: max(1, min(2, len(literal) - 1), len(literal) - 2)].translate(_RARITY)
    at = rarity.index(min(rarity))
    begin = max(0, len(literal) - _NEEDLE) if at + _GUARDED > len(literal) else at
    return literal[at : at + _NEEDLE], literal[begin : at + _NEEDLE]


def _tree(words: Sequence[tuple[bytes, bytes]]) -> bytes:
    """An expression for what may follow the first letter of each word, and its guard; the longest first. A search leaves it at a letter
    that fits none."""
    rest = [(word[1:], guard) for word, guard in words]
    if len(rest) == 1:
        return re.escape(rest[0][0]) + rest[0][1]
    by_next = itertools.groupby(rest, lambda word: word[0][:1])
    return b"(?:%s)" % b"|".join(re.escape(letter) + _tree([*of]) if letter else b"|".join(g for _, g in of) for letter, of in by_next)


def may_match(branches: tuple[tuple[frozenset[bytes], ...], ...], low: bytes) -> bool:
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
    return not branches


def _beside(branches: Iterable[tuple[frozenset[bytes], ...]], needle: bytes) -> tuple[tuple[frozenset[bytes], ...], ...]:
    """What a line must hold beside the needle, for each branch that it stands for; empty if nothing."""
    others = {tuple(sorted((of for of in branch if not any(n in needle for n in of)), key=len)) for branch in branches}
    return () if () in others else tuple(others)  # most lines miss the first of these: a short one is missed soonest


@functools.cache
def apart(expression: str) -> list[tuple[frozenset[bytes], ...]]:
    """For each alternative: sets of literals, of each of which a matching line holds one, the rarest first."""
    told = worked_out("literals").get(expression, [[]])  # a new one is asked of every line until tests/test_docs.py has worked it out
    return [tuple(frozenset(map(str.encode, literals)) for literals in branch) for branch in told]


@functools.cache
def alternatives(expression: str) -> list[str]:
    """The expression taken apart at each "|" outside brackets; a line matches it if it matches one of them."""
    flags, depth, told = re.match(r"(?:\(\?[a-z]+\))?", expression)[0], 0, [""]
    for token in _TOKENS.findall(expression, len(flags)):
        depth += (token == "(") - (token == ")")
        told = [*told, ""] if token == "|" and not depth else [*told[:-1], told[-1] + token]
    return [flags + one for one in told]
