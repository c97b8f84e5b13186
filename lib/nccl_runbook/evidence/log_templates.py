"""Most lines of a log are alike but for their numbers: what lines of one kind ("template") are worth is looked at once.

New kinds are looked at many together, so that a log in which no two lines are alike costs little more than one that repeats itself.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Iterator

from nccl_runbook.evidence import log_events
from nccl_runbook.evidence.log_text import LINE_CHARACTERS, pieces, said
from nccl_runbook.facts.logs import LogLine
from nccl_runbook.knowledge.clues import Matcher, alternatives, apart, compiled, folded, may_match, printed

MAX_TEMPLATES = 200_000
CHEAP_LINES = 8000  # of one kind that only says how far a rank is, or which way data goes; the last ones are in the tail anyway
LATE_LINES = 256  # of these are read all the same in each part of a log, so that it is known what went on after a message, and how far
FEW_BYTES, RUN = 1 << 20, 5  # of kinds: thousands of literals are looked for in no more, so that it is known which runs of letters it has
KEPT_BYTES = 16_000  # of the first line of a kind
_DIGITS, _HEX = b"0123456789", b"0123456789abcdef"
_NUMBERS = re.compile(  # there a number tells one fault from another
    rb"Xid|WARN|rror|vendor|xit ?code|ignal|rrno|family|joined|Timeout\(ms\)|magic|VISIBLE|addresses|NCCL \d|process index|evice(?:: |=')|"
    rb"eturn (?:code|value)|onnect(?:ing|ed|\(\))? (?:to|\[)|onnection closed by|frozen|throttled|MEMBER|\.cc:\d+ -> ")
ODD = re.compile(r"(?i)\b(?:error|fail(?:ed|ure)?|fatal|abort(?:ed)?|WARN|exception|timed? ?out|killed|panic|refused)\b")
_ERRORS = ("error", "fail", "fatal", "abort", "warn", "exception", "timeout", "timed", "time out", "killed", "panic", "refused")
_OURS = re.compile(rb"nccl|torch|cuda|rank|traceback|gpu|c10d|gloo|nvidia|deepspeed|vllm|sglang|\bray\b|srun|slurm|xid|nvrm|mpirun|ibv")
_ENDS_OPEN = re.compile(r"Watchdog|WorkNCCL|NCCL WARN|Error|PG ID|[Ll]ast enqueued|Duplicate|Traceback|Last error:\s*$")
_STARTS = re.compile(r"^(?:\[|\d{4}-|Traceback|\(|[\w.-]+:\d+:\d+ \[|[\w.]*(?:Error|Exception|Interrupt)(?:_\w{1,40})?(?::|\s*$))")
_HIDING = (b"\x1b", b"\x00")
Asked = list[tuple[str, Collection[str]]]  # texts of one line, and the expressions that each may match
At = tuple[str, int, bytes]
_OWN = frozenset([ODD.pattern, _ENDS_OPEN.pattern, *log_events.HINTS])


@dataclasses.dataclass(slots=True)
class Kind:
    """``at``: file, line and raw text of the first line; ``matched``: expressions of clues that it matches; ``tells``: what about a rank;
    ``cheap``: only the first lines of it and the last ones count; ``steps``: it only says how far a rank is; ``odd``: it looks like an
    error, None while nobody has asked; ``opens``: its message may go on in the next line; ``told``: where the first line tells it, until
    that is taken in."""

    at: At
    matched: tuple[str, ...] = ()
    tells: Collection[str] = ()
    cheap: bool = False
    steps: bool = False
    odd: bool | None = False
    opens: bool = False
    told: log_events.Told | None = None
    times: int = 0
    first: LogLine | None = None

    def is_enough(self) -> bool:
        """Whether no further line of it is wanted."""
        return bool(self.cheap and not self.steps and self.times > CHEAP_LINES and (self.matched or self.tells))

    def texts(self) -> list[str]:
        """What the first line says, as it was printed, and put together where it was broken."""
        told = pieces(self.at[2])
        return [*told, self.first.text] if self.first and not any(self.first.text in text for text in told) else told


@functools.cache
def _matcher() -> Matcher:
    return Matcher([*printed(), *_OWN, *log_events.LAUNCHERS], {**log_events.HINTS, ODD.pattern: _ERRORS})


class Templates:
    """Every kind of line that was seen."""

    def __init__(self) -> None:
        self.kinds: dict[bytes | int, At] = {}  # most tell nothing, and there may be a hundred thousand of them
        self.ours = False
        self.launchers: set[str] = set()  # expressions of which a line was seen
        self.above = b""  # the line before those to come, if its message may go on
        self._telling: dict[bytes | int, Kind] = {}
        self._numeric: set[bytes] = set()
        self._steps = 0  # lines that say how far a rank is

    def of(self, name: str, number: int, rows: list[bytes]) -> list[tuple[int, Kind, bytes]]:
        """Those of these lines of which the kind tells something, by index; and the line above where its message may go on. The first
        is line ``number``."""
        keys = self._keys(rows)
        there = set(keys)
        kinds, known = (self.kinds, self._telling) if len(self.kinds) < MAX_TEMPLATES else ({}, self._telling.copy())
        fresh = {}
        for index, key in () if self.kinds.keys() >= there else enumerate(keys):
            if key not in kinds and key not in self.kinds:
                fresh[index] = rows[index]
                kinds[key] = name, number + index, ends(rows[index])
        asked = self._asked(fresh)
        known |= {keys[index]: kind for index, texts in asked.items() if (kind := self._judged(kinds[keys[index]], texts))}
        above = self._open(rows, keys, {key for key in there if key in known and known[key].opens})
        whole = [(index, joined(above[index], text)) for index in above if index in fresh for text in pieces(rows[index])[:1]]
        for (index, text), may in zip(whole, _may_match([text for _, text in whole])):
            if text and (kind := self._judged(kinds[keys[index]], [*asked.get(index, [("", ())]), (text, may)])):
                known[keys[index]] = kind
        above = self._open(rows, keys, {key for key in there if key in known and known[key].opens}) if whole else above
        self.above = above.get(len(rows), b"")
        telling = {key: known[key] for key in there if key in known and not known[key].is_enough()}
        steps = [i for i, k in enumerate(keys) if k in telling and telling[k].steps] if any(k.steps for k in telling.values()) else []
        left_out = set(steps[:-LATE_LINES] if self._steps > CHEAP_LINES else ())
        self._steps += len(steps)
        return [(i, telling[key], above.get(i, b"")) for i, key in enumerate(keys) if key in telling and i not in left_out]

    def _open(self, rows: list[bytes], keys: list[bytes | int], opening: set[bytes | int]) -> dict[int, bytes]:
        """Index of a line -> the one above whose message may go on in it."""
        above = {index + 1: rows[index] for index, key in enumerate(keys) if key in opening} if opening else {}
        return {0: self.above, **above} if self.above else above

    def all(self) -> Iterator[tuple[At, Kind | None]]:
        """Every kind, None for what tells nothing."""
        return zip(self.kinds.values(), map(self._telling.get, self.kinds))

    def _keys(self, rows: list[bytes]) -> list[bytes | int]:
        """What is alike in lines of one kind; most are known, or short and without a number."""
        text, known = b"\n".join(rows), self.kinds
        infos = text.count(b"NCCL INFO")
        bare = text.translate(None, _HEX if infos >= len(rows) else _DIGITS).split(b"\n") if rows else []
        if 0 < infos < len(rows):
            bare = [low if b"NCCL INFO" in raw else key for raw, key, low in zip(rows, bare, text.translate(None, _HEX).split(b"\n"))]
        if known.keys() >= set(bare):
            return bare
        # a line that is its own key is kept once
        return [k if k in known else raw if len(k) == len(raw) <= LINE_CHARACTERS else self._key(k, raw) for k, raw in zip(bare, rows)]

    def _key(self, key: bytes, raw: bytes) -> bytes | int:
        if len(key) > LINE_CHARACTERS:  # not kept itself: a thousand of them would fill the memory
            return hash(raw if _NUMBERS.search(raw) else key)
        if (b"NCCL INFO" not in raw or b".cc:" in raw[-24:]) and (key in self._numeric or _NUMBERS.search(raw)):
            self._numeric.add(key)
            return raw
        return key

    def _asked(self, raws: dict[int, bytes]) -> dict[int, Asked]:
        """Of each line that may match any expression its texts, each with those."""
        self.ours = self.ours or bool(_OURS.search(b"\n".join(raws.values()).lower()))
        found, at = _matcher().may_match(_visible([*raws.values()])), [*raws]
        texts = {at[number]: (pieces(raws[at[number]]), may) for number, may in found.items()}
        return {index: list(zip(of, _may_match(of) if len(of) > 1 else [may])) for index, (of, may) in texts.items()}

    def _judged(self, at: At, texts: Asked) -> Kind | None:
        """What the line tells, if it does. Whether one that is whole looks like an error is asked later, and of few."""
        matched, own = {}, {}
        for e, text in [(e, text) for text, may in texts for e in may if e not in self.launchers]:
            if e is ODD.pattern and len(texts) == 1:
                own[e] = None
            elif e in _OWN:
                own[e] = compiled(e).search(said(text).text if e in log_events.HINTS else text) or own.get(e, False)
            elif compiled(e).search(plain(text)):
                matched[e] = None
        self.launchers |= log_events.LAUNCHERS.keys() & matched
        matched = tuple(e for e in matched if e not in log_events.LAUNCHERS)
        if not matched and all(found is False for found in own.values()):
            return None
        told = {e: found for e, found in own.items() if found and e in log_events.HINTS}
        cheap = not told.keys() & log_events.MUCH and (not matched or b"NCCL INFO" in at[2])
        # with other numbers another expression may match, but in what NCCL says of its set-up
        tells = frozenset(told if b"NCCL INFO" in at[2] else (e for _, may in texts for e in may if e in log_events.HINTS)) if told else ()
        odd, opens = (own.get(e, False) and True for e in (ODD.pattern, _ENDS_OPEN.pattern))
        return Kind(at, matched, tells, cheap, told.keys() == log_events.STEPS and not matched, odd, opens, None if texts[1:] else told)


def _may_match(texts: list[str]) -> list[Collection[str]]:
    found = _matcher().may_match([text.encode() for text in texts])
    return [found.get(index, ()) for index in range(len(texts))]


def _visible(raws: list[bytes]) -> list[bytes]:
    """The lines without what hides a word when it stands inside."""
    whole = b"\n".join(raws)
    if not any(mark in whole for mark in _HIDING):
        return raws
    return ["\r".join(pieces(raw)).encode() if any(mark in raw for mark in _HIDING) else raw for raw in raws]


def ends(raw: bytes) -> bytes:
    """The line, or where it is very long what it begins with and what it ends with."""
    return raw if len(raw) <= KEPT_BYTES else raw[: KEPT_BYTES // 2] + b"\r" + raw[-KEPT_BYTES // 2 :]


class Texts:
    """All kinds of lines as one text, to be asked whether any line matches an expression."""

    def __init__(self, kinds: Iterable[tuple[At, Kind | None]], context: str) -> None:
        (self._ats, self._kinds), self._context = list(zip(*kinds)) or ((), ()), context
        rows = _visible([at[2] for at in self._ats])
        rows = ["\r".join(kind.texts()).encode() if kind and kind.first else raw for kind, raw in zip(self._kinds, rows)]
        self._low = folded(b"\n".join([*rows, context.replace("\n", " ").encode("utf-8", "replace")]))
        self._runs = {self._low[at : at + RUN] for at in (range(len(self._low)) if len(self._low) < FEW_BYTES else ())}
        self._ends = list(itertools.accumulate([len(low) + 1 for low in self._low.split(b"\n")], initial=-1))
        self._said = functools.cache(self._texts) if self._runs else self._texts

    def first(self, expression: str) -> tuple[str, Kind | None] | None:
        """The first text that matches."""
        found, until = [], len(self._low)
        for number, sets in enumerate(apart(expression)):
            for literal in filter(self._may_hold, sets[0] if sets else [b""]):
                for line in self._with(literal, until):
                    may = may_match((sets[1:],), self._low[self._ends[line] + 1 : self._ends[line + 1]])
                    if may and any(compiled(alternatives(expression)[number]).search(text) for text, *_ in self._said(line)):
                        found, until = self._said(line), max(0, self._ends[line])
                        break
        every = [compiled(one) for one in alternatives(expression)] if found else []
        return next(((told, kind) for text, told, kind in found if any(one.search(text) for one in every)), None)

    def _may_hold(self, literal: bytes) -> bool:
        return not self._runs or all(literal[at : at + RUN] in self._runs for at in range(len(literal) - RUN + 1))

    def _with(self, literal: bytes, until: int) -> Iterator[int]:
        """The lines that hold this, of those that end before ``until``."""
        at = self._low.find(literal, 0, until)
        while at >= 0:
            line = bisect.bisect_left(self._ends, at) - 1
            yield line
            at = self._low.find(literal, self._ends[line + 1] + 1, until)

    def _texts(self, line: int) -> list[tuple[str, str, Kind | None]]:
        """The texts of a line, without advice and with it; below those of all kinds are the reporter's words, as one."""
        if line < len(self._kinds):
            kind = self._kinds[line] or Kind(self._ats[line])
            return [(plain(text), text, kind) for text in kind.texts()]
        return [(plain(self._context), self._context, None)] if self._context else []


# what libraries advise in general in the same line: it tells nothing about this job
_ADVICE = re.compile(r"This is most likely caused by .*|This can (?:potentially )?cause a hang.*|For debugging consider passing .*|"
    r'You can specify device_id.*|NCCL_GUARD \{(?!.*"ok":false).*|'  # a guard that passed tells of no fault
    r"In rare cases this process .*|This typically indicates .*|Due to the asynchronous nature .*|If reserved but unallocated memory .*|"
    r"This (?:may|could) indicate .*")


def plain(text: str) -> str:
    """The text without advice that libraries print along."""
    may = "his " in text or "For debugging" in text or "You can" in text or "Due to" in text or "If reserved" in text or "GUARD {" in text
    return _ADVICE.sub("", text) if may else text


def joined(above: bytes, text: str) -> str:
    """Two lines as one where a terminal or Ray broke a message inside; "" where this does not look broken."""
    if above.rstrip().endswith(b"Last error:"):
        return "NCCL WARN " + text  # PyTorch and NCCL's tests quote the warning below this line, without its head
    if len(above) < 16 or len(above) > 2000 or not text[:1].strip() or _STARTS.match(text):
        if not text.startswith((" ", "\t")) or not above.rstrip().endswith((b":", b",")):
            return ""
    head = above.decode("utf-8", "replace").rstrip("\r\n")
    return "" if not _ENDS_OPEN.search(head) else head.rstrip() + " " + text.strip() if text[:1] in " \t" else head + text
