"""Lines that are alike but for their numbers, and match the same expressions, are of one kind. What a kind is
worth is looked at once.

New kinds are looked at many together, so that a log in which no two lines are alike costs little more
than one that repeats itself.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Iterator

from nccl_runbook.logs.facts import LogLine
from nccl_runbook.logs.text import LINE_CHARACTERS, pieces, who_says
from nccl_runbook.logs.tracebacks import Tracebacks
from nccl_runbook.messages.clues import needs
from nccl_runbook.messages.lines import (
    EXPRESSIONS,
    LAUNCHERS,
    MUCH,
    OWN,
    ends,
    joined,
    matcher,
    numbered,
    shows,
    visible,
)
from nccl_runbook.messages.matcher import folded, holds

MAX_KINDS = 200_000
# of one kind that only says how far a rank is, or which way data goes; the last ones are in the tail anyway
CHEAP_LINES = 8000
PROGRESS_LINES = 10  # of a job that trains; a page of documentation may quote a few
# of these are read all the same in each part of a log, so that it is known what went
# on after a message, and how far
LATE_LINES = 256
_DIGITS, _HEX = b"0123456789", b"0123456789abcdef"
_OURS = re.compile(
    rb"nccl|torch|cuda|rank|traceback|gpu|c10d|gloo|nvidia|deepspeed|vllm|sglang|\bray\b|srun|slurm|"
    rb"xid|nvrm|mpirun|ibv|\bjax\b|\bxla|pjrt|tensorflow|horovod|levanter|hccl|oneccl|paddle"
)
# lines that only quote: our own answers, whose lines were judged already, and the source of a traceback
_QUOTES = re.compile(
    rb"^ {3}(?:seen|decides|against|you|(?:in )?your launcher|the administrator|to do|"
    rb"ask your administrator): |"
    rb"^(?:Broken|Degraded|Unknown): (?:the log shows|you report|[^\n]{1,200}\((?:established|likely)\))|"
    rb"\[[a-z0-9-]+, (?:established|likely|possible)\]\s*$|"
    rb"^(?:\[\w{1,20}\]:?|\([^()\n]{1,60}\))? {2,60}raise \w[\w.]{0,60}\("
)
# a text, maybe cut off, and an argument in source: the program did not print it there
_LITERAL = re.compile(rb"\"[^\"\n]*\s[^\"\n]*(?:\"|$)|'[^'\n]*\s[^'\n]*(?:'|$)|\b\w{1,60}=[\w.]{1,80}")
# c10/util/Backtrace.cpp (torch 2.11) shows where, not what; a warning of Python ends nothing, and neither
# does what is tried again
_NO_FAULT = re.compile(
    r"frame #|Exception raised from |:\d+: \w*Warning: |\bwarnings\.warn\(|\b[Rr]etry(?:ing)?\b"
)
Asked = list[tuple[str, Collection[str]]]  # texts of one line, and the ids that each may match
At = tuple[str, int, bytes]
Key = bytes | int | tuple


@dataclasses.dataclass(slots=True)
class Kind:
    """One kind of line. ``at``: file, line and raw text of the first; ``messages``: ids that it matches;
    ``about_rank``: ids of what it shows about a rank; ``cheap``: only its first and last lines count;
    ``steps``: only shows progress; ``raised``: it ended a traceback; ``last``: order of the last one;
    ``odd``: looks like an error; ``opens``: its message may go on in the next line; ``first``: the first line
    as quoted."""

    at: At
    messages: tuple[str, ...] = ()
    about_rank: Collection[str] = ()
    cheap: bool = False
    steps: bool = False
    raised: bool = False
    last: int = -1
    odd: bool = False
    opens: bool = False
    times: int = 0
    first: LogLine | None = None

    def is_enough(self) -> bool:
        """Whether no further line of this kind is needed."""
        return bool(
            self.cheap and self.times > CHEAP_LINES and (self.messages or self.about_rank) and not self.steps
        )

    def texts(self) -> list[str]:
        """Texts in the first line: as printed, and rejoined if it was broken."""
        texts = pieces(self.at[2])
        return (
            [*texts, self.first.text]
            if self.first and not any(self.first.text in text for text in texts)
            else texts
        )


@dataclasses.dataclass(eq=False)
class Kinds:
    """Every kind of line that was seen."""

    # most have no information, and there may be a hundred thousand of them
    first: dict[Key, At] = dataclasses.field(default_factory=dict)
    ours: bool = False
    launchers: set[str] = dataclasses.field(default_factory=set)  # ids with at least one line
    above: bytes = b""  # the line before the next block, if its message may go on
    _telling: dict[Key, Kind] = dataclasses.field(default_factory=dict)
    # key of several lines -> expressions that match these or not by their numbers
    _numbered: dict[Key, Collection[str]] = dataclasses.field(default_factory=dict)
    tracebacks: Tracebacks = dataclasses.field(default_factory=Tracebacks)
    _steps: int = 0  # lines that say how far a rank is

    def of(self, name: str, number: int, rows: list[bytes]) -> list[tuple[int, Kind, bytes]]:
        """(index, kind, line) of the lines with information, and of the line above if its message may go on.
        ``number``: of the first."""
        keys = self._keys(rows)
        there, (source, raised) = set(keys), self.tracebacks.of(rows)
        first, known = (
            (self.first, self._telling) if len(self.first) < MAX_KINDS else ({}, self._telling.copy())
        )
        fresh = {}
        for index, key in () if self.first.keys() >= there else enumerate(keys):
            if key not in first and key not in self.first:
                fresh[index] = _LITERAL.sub(b"", rows[index]) if index in source else rows[index]
                first[key] = name, number + index, ends(fresh[index])
        asked = self._asked(fresh)
        known |= {
            keys[index]: kind
            for index, texts in asked.items()
            if (kind := self._judged(first[keys[index]], texts))
        }
        for key in {keys[index] for index in raised}:
            kind = known.get(key) or Kind(first.get(key) or self.first[key])
            known[key] = dataclasses.replace(kind, about_rank={*kind.about_rank, "rank-error"}, raised=True)
        above = self._open(rows, keys, {key for key in there if key in known and known[key].opens})
        whole = [
            (index, joined(above[index], text))
            for index in above
            if index in fresh
            for text in pieces(rows[index])[:1]
        ]
        for (index, text), may in zip(whole, _may_match([text for _, text in whole])):
            if text and (
                kind := self._judged(first[keys[index]], [*asked.get(index, [("", ())]), (text, may)])
            ):
                known[keys[index]] = kind
        above = (
            self._open(rows, keys, {key for key in there if key in known and known[key].opens})
            if whole
            else above
        )
        self.above = above.get(len(rows), b"")
        telling = {key: known[key] for key in there if key in known and not known[key].is_enough()}
        steps = (
            [i for i, k in enumerate(keys) if k in telling and telling[k].steps]
            if any(k.steps for k in telling.values())
            else []
        )
        left_out = set(steps[:-LATE_LINES] if self._steps > CHEAP_LINES else ())
        self._steps += len(steps)
        return [
            (i, telling[key], above.get(i, b""))
            for i, key in enumerate(keys)
            if key in telling and i not in left_out
        ]

    def _open(self, rows: list[bytes], keys: list[Key], opening: set[Key]) -> dict[int, bytes]:
        """Index of a line -> the one above whose message may go on in it."""
        above = (
            {index + 1: rows[index] for index, key in enumerate(keys) if key in opening} if opening else {}
        )
        return {0: self.above, **above} if self.above else above

    def all(self) -> Iterator[tuple[At, Kind | None]]:
        """Every kind with its first place; None for lines without information."""
        return zip(self.first.values(), map(self._telling.get, self.first))

    def odd(self) -> list[Kind]:
        """Kinds that look like an error and match nothing known, the most frequent first."""
        odd = [k for _, k in self.all() if k and k.odd and not k.messages and not k.about_rank and k.texts()]
        return sorted((k for k in odd if not _NO_FAULT.search(k.texts()[0])), key=lambda k: -k.times)

    def is_training(self) -> bool:
        """Whether many lines show progress in two ways: step and loss, or a bar and its rate."""
        progress = matcher().pattern("rank-progress")
        lines = (
            k.times * sum(len(progress.findall(text)) > 1 for text in k.texts())
            for _, k in self.all()
            if k and "rank-progress" in k.about_rank
        )
        return sum(lines) >= PROGRESS_LINES

    def _keys(self, rows: list[bytes]) -> list[Key]:
        """What lines of one kind share; most are known, or short and without a number."""
        text = b"\n".join(rows)
        infos = text.count(b"NCCL INFO")
        bare = text.translate(None, _HEX if infos >= len(rows) else _DIGITS).split(b"\n") if rows else []
        if 0 < infos < len(rows):
            bare = [
                low if b"NCCL INFO" in raw else key
                for raw, key, low in zip(rows, bare, text.translate(None, _HEX).split(b"\n"))
            ]
        if all(self._numbered.get(key) == () for key in set(bare)):
            return bare
        # a thousand long lines would fill the memory
        short = [hash(key) if len(key) > LINE_CHARACTERS else key for key in bare]
        self._find_numbered(short, rows)
        low = folded(text)
        shown = {
            i
            for i in {i for key in short for i in self._numbered.get(key, ())}
            if any(holds(low, of) for of in needs(numbered().expressions[i]))
        }
        may = {key: [i for i in self._numbered.get(key, ()) if i in shown] for key in set(short)}
        # a line that is its own key is kept once
        return [
            _key(key, raw, may[key]) if may[key] else raw if key == raw else key
            for key, raw in zip(short, rows)
        ]

    def _find_numbered(self, keys: list[Key], rows: list[bytes]) -> None:
        """Ask once for each key of several lines: which expressions match these or not by their numbers."""
        new = [(key, raw) for key, raw in zip(keys, rows) if key not in self._numbered]
        times = Counter(key for key, _ in new)
        repeated = {key: raw for key, raw in new if key in self.first or times[key] > 1}
        ids = numbered().may_match([raw.translate(None, _DIGITS) for raw in visible([*repeated.values()])])
        self._numbered |= {key: ids.get(at, ()) for at, key in enumerate(repeated)}

    def _asked(self, raws: dict[int, bytes]) -> dict[int, Asked]:
        """Of each line that may match any expression its texts, each with those."""
        self.ours = self.ours or bool(_OURS.search(b"\n".join(raws.values()).lower()))
        candidates, at = matcher().may_match(visible([*raws.values()])), [*raws]
        texts = {at[number]: (pieces(raws[at[number]]), may) for number, may in candidates.items()}
        several = iter(_may_match([text for of, _ in texts.values() if len(of) > 1 for text in of]))
        return {
            index: [(text, next(several) if len(of) > 1 else may) for text in of]
            for index, (of, may) in texts.items()
        }

    def _judged(self, at: At, texts: Asked) -> Kind | None:
        """What the line shows, if anything."""
        if _QUOTES.search(at[2]):
            return None
        pattern, messages, own = matcher().pattern, {}, {}
        for name, text in [(name, text) for text, may in texts for name in may if name not in self.launchers]:
            if name in OWN:
                own[name] = own.get(name) or bool(
                    pattern(name).search(who_says(text).text if name in EXPRESSIONS else text)
                )
            elif shows(pattern(name), text):
                messages[name] = None
        self.launchers |= LAUNCHERS.keys() & messages
        messages = tuple(name for name in messages if name not in LAUNCHERS)
        if not messages and not any(own.values()):
            return None
        about = {name for name, matched in own.items() if matched and name in EXPRESSIONS}
        cheap = not about & MUCH and (not messages or b"NCCL INFO" in at[2])
        return Kind(
            at,
            messages,
            about,
            cheap,
            steps=about == {"rank-progress"} and not messages,
            odd=own.get("looks-odd", False),
            opens=own.get("ends-open", False),
        )


def _may_match(texts: list[str]) -> list[Collection[str]]:
    candidates = matcher().may_match([text.encode() for text in texts])
    return [candidates.get(index, ()) for index in range(len(texts))]


def _key(key: Key, raw: bytes, may: list[str]) -> Key:
    """The key of a line whose numbers decide what it matches. ``may``: the expressions to try."""
    texts = pieces(raw)
    matched = [i for i in may if any(shows(numbered().pattern(i), text) for text in texts)]
    return (key, *matched) if matched else key
