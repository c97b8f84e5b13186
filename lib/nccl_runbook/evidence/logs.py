"""Everything that a job left, looked through once: which known messages it holds, and a table of its ranks.

Most lines of a log are alike but for their numbers. Each kind ("template") is looked at once; only where it tells something is every
line of it read, so that 64 ranks of NCCL's INFO cost little more than one.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import time
from collections.abc import Iterable
from typing import BinaryIO

from nccl_runbook.evidence import log_events
from nccl_runbook.evidence.log_file import named
from nccl_runbook.evidence.log_kinds import kind
from nccl_runbook.evidence.log_sources import Source, sources
from nccl_runbook.evidence.log_text import pieces, rank_of_name, said
from nccl_runbook.facts.logs import LogLine, Logs, Seen, Template
from nccl_runbook.knowledge.clues import clues, compiled, matcher, needed, stands_in

LIMIT_S = 60.0  # a log made to be slow must not hold up the reader
MAX_LINES = 8  # kept of one message
MAX_TEMPLATES = 200_000
CHEAP_LINES = 8000  # of one template that only says how far a rank is, or which way data goes; the last ones are in the tail anyway
SLICE_LINES = 16
TAIL_LINES = 4000  # of each file are read whole, for the last word of every rank
CONTEXT = "--context"
_DIGITS, _HEX = b"0123456789", b"0123456789abcdef"
_NUMBERS = re.compile(
    rb"Xid|WARN|rror|vendor|xit ?code|ignal|rrno|family|joined|Timeout\(ms\)|magic|VISIBLE|addresses|NCCL \d"
)  # there a number tells one fault from another
_ERROR = re.compile(r"(?i)\b(?:error|fail(?:ed|ure)?|fatal|abort(?:ed)?|WARN|exception|timed? ?out|killed|panic|refused)\b")
_OURS = re.compile(r"(?i)nccl|torch|cuda|rank|traceback|gpu|c10d|gloo|nvidia|deepspeed|vllm|sglang|\bray\b|srun|slurm|xid|nvrm|mpirun|ibv")
_ENDS_OPEN = re.compile(r"(?:Watchdog|WorkNCCL|NCCL WARN|Error|PG ID|[Ll]ast enqueued|Duplicate|Traceback)")
_STARTS = re.compile(r"^(?:\[|\d{4}-|Traceback|\(|[\w.-]+:\d+:\d+ \[|[\w.]*(?:Error|Exception|Interrupt)(?::|\s*$))")


@dataclasses.dataclass
class _Kind:
    """What lines of one template are worth: the expressions they match, and whether they tell about a rank."""

    matched: tuple[str, ...]
    tells: bool
    cheap: bool = False
    numbers: bool = False
    times: int = 0
    first: LogLine | None = None
    more: tuple[LogLine, ...] = ()  # the last messages in one raw line: a progress bar stands before them


@dataclasses.dataclass
class _Found:
    """Lines of one expression while they are collected."""

    lines: list[LogLine] = dataclasses.field(default_factory=list)
    times: int = 0
    last: dict[tuple[str, int | None], int] = dataclasses.field(default_factory=dict)  # (file, rank) -> order


def collect(
    paths: list[str], context: str = "", stdin: BinaryIO | None = None, limit_s: float = LIMIT_S, skip: frozenset[str] = frozenset()
) -> Logs:
    """The facts of these logs, without those named in ``skip``. Never raises for what is in them: a file that cannot be read says so in
    ``files``."""
    reader = _Reader(time.monotonic() + limit_s)
    files = []
    for source in sources(paths, stdin):
        if source.name in skip:
            continue
        if not source.problem:
            reader.read(source)
        files.append(source.told())
    return reader.facts(files, context)


def collect_named(log: str, context: str = "") -> Logs:
    """The same for a text field: paths separated by colons, "" for none; a name with a colon in it is one path if it exists."""
    return collect(named(log), context)


class _Reader:
    """One pass over all texts."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._lines = matcher()
        self._kinds: dict[bytes, _Kind] = {}
        self._found: dict[str, _Found] = collections.defaultdict(_Found)
        self._table = log_events.Ranks()
        self._slice: list[bytes] = []
        self._literals: tuple[str, ...] | None = None
        self._order = 0
        self._ours = False

    def read(self, source: Source) -> None:
        """Take in one text; a sentence in ``source.left_out`` where time or space ran out."""
        tail: collections.deque[tuple[int, bytes]] = collections.deque(maxlen=TAIL_LINES)
        own_rank, rest, number, before = rank_of_name(source.name), b"", 0, b""
        for chunk in source.chunks():
            source.kind, is_log = kind(chunk) if not number else (source.kind, True)
            if not is_log:
                source.problem = f"is {source.kind}"
                return
            rows = (rest + chunk).split(b"\n")
            rest = rows.pop()
            if len(rest) > 64 << 20:
                rows, rest = [*rows, rest], b""
            for index, raw in enumerate(rows):
                if index % SLICE_LINES == 0:
                    self._slice, self._literals = rows[index : index + SLICE_LINES], None
                number += 1
                self._row(source.name, number, raw, own_rank, before)
                before = raw
            tail.extend(enumerate(rows[-TAIL_LINES:], number - min(len(rows), TAIL_LINES) + 1))
            if time.monotonic() > self._until:
                source.left_out = f"reading stopped after {number} lines: the time was up"
                break
        if rest:
            number += 1
            self._slice, self._literals = [rest], None
            self._row(source.name, number, rest, own_rank, before)
            tail.append((number, rest))
        source.lines = number
        self._last_words(source.name, tail, own_rank, number)

    def _row(self, name: str, number: int, raw: bytes, own_rank: int | None, before: bytes) -> None:
        self._order += 1
        key = raw.translate(None, _HEX if b"NCCL INFO" in raw else _DIGITS)
        kind = self._kinds.get(key)
        if kind is not None and kind.numbers and raw != key:
            key, kind = raw, self._kinds.get(raw)
        if kind is None:
            kind = self._new(raw, before)
            if len(self._kinds) < MAX_TEMPLATES:
                self._kinds[key] = kind
        kind.times += 1
        if (kind.matched or kind.tells or kind.first is None) and not (kind.cheap and kind.times > CHEAP_LINES):
            for text in pieces(raw):
                self._take(kind, name, number, text, own_rank, before)

    def _new(self, raw: bytes, before: bytes) -> _Kind:
        texts = pieces(raw)
        joined = _joined(before, texts[0]) if texts else ""
        around = self._around()
        matched = dict.fromkeys(m for text in texts for m in self._lines.matching(plain(text), around))
        matched.update(dict.fromkeys(self._lines.matching(plain(joined)) if joined else ()))
        bare = [said(text).text for text in texts]
        self._ours = self._ours or any(map(_OURS.search, texts))
        tells = any(map(log_events.tells, bare)) or bool(joined and log_events.tells(joined))
        cheap = not (tells and any(map(log_events.tells_much, bare))) and (not matched or b"NCCL INFO" in raw)
        return _Kind(tuple(matched), tells, cheap, b"NCCL INFO" not in raw and bool(_NUMBERS.search(raw)))

    def _around(self) -> tuple[str, ...] | None:
        """The literals that lines of this slice can hold; None where colours or null characters may stand inside words."""
        if self._literals is None:
            text = b"\n".join(self._slice)
            if b"\x1b" in text or b"\x00" in text or not text.isascii():
                return None
            self._literals = self._lines.literals_in(text)
        return self._literals

    def _take(self, kind: _Kind, name: str, number: int, text: str, own_rank: int | None, before: bytes) -> None:
        joined = _joined(before, text) if kind.tells or kind.matched else ""
        who = said(text if joined.startswith("NCCL WARN ") else joined or text)
        rank = own_rank if who.rank is None else who.rank
        rank = self._table.rank_of(who.host, who.pid, name) if rank is None and who.pid else rank
        line = LogLine(name, number, who.text.strip()[:1000], rank, who.host, who.time)
        if kind.first is None:
            kind.first = line
        elif kind.times == 1:
            kind.more = (*kind.more[-7:], line)
        for expression in kind.matched:
            self._keep(expression, line, text, joined, who.times)
        if kind.tells:
            self._table.take(line, joined or who.text, who.pid, self._order)

    def _keep(self, expression: str, line: LogLine, text: str, joined: str, times: int) -> None:
        pattern = compiled(expression)
        if not pattern.search(plain(text)) and not (joined and pattern.search(plain(joined))):
            return  # another line of this template, with other numbers
        found = self._found[expression]
        found.times += times
        found.last[line.file, line.rank] = self._order
        if len(found.lines) < MAX_LINES and self._is_new(line, found.lines):
            found.lines.append(line)

    def _is_new(self, line: LogLine, kept: list[LogLine]) -> bool:
        """Another rank, or, where nobody knows the rank, no more than a few lines of one host."""
        if line.rank is None:
            return sum(line.host == k.host and k.rank is None for k in kept) < MAX_LINES // 2 or not line.host
        return all(line.rank != k.rank for k in kept)

    def _last_words(self, name: str, tail: Iterable[tuple[int, bytes]], own_rank: int | None, lines: int) -> None:
        for number, raw in tail:
            for text in pieces(raw)[-1:]:
                who = said(text)
                rank = own_rank if who.rank is None else who.rank
                rank = self._table.rank_of(who.host, who.pid, name) if rank is None and who.pid else rank
                if who.text.strip() and rank is not None:
                    self._table.last(LogLine(name, number, who.text.strip()[:1000], rank, who.host, who.time), self._order - lines + number)

    def facts(self, files: list, context: str) -> Logs:
        """Everything together: what else must or must not be there is asked only for clues whose own line was seen."""
        for number, text in enumerate(context.splitlines()[:1000], 1):
            line = LogLine(CONTEXT, number, text.strip()[:1000])
            for expression in self._lines.matching(text):
                self._keep(expression, line, text, "", 1)
        fired = [c for c in clues() if c.line in self._found]
        texts = [(at.text, at) for k in self._kinds.values() for at in (k.first, *k.more) if at]
        texts += [(context, LogLine(CONTEXT, 1, context))] if context else []
        low = [text.lower() for text, _ in texts]
        whole = "\n".join(low)
        for expression in dict.fromkeys(e for c in fired for e in (*c.also, *c.without)):
            literals = [n for n in needed(expression) if n in whole]
            if expression not in self._found and (literals or not needed(expression)):
                self._ask(expression, [pair for pair, text in zip(texts, low) if not literals or any(n in text for n in literals)])
        seen = {e: Seen(f.lines, f.times, self._resumed(f)) for e, f in self._found.items() if f.lines}
        return Logs(
            [dataclasses.replace(f, name=short(f.name)) for f in files],
            context,
            seen,
            self._table.rows(),
            log_events.launcher(texts),
            self._strange(),
            bool(texts) and not self._ours and not seen,
            self._table.versions(),
            self._table.failed,
            self._table.timeout,
            self._table.raised,
            self._table.clocks.offsets(),
        )

    def _ask(self, expression: str, texts: list[tuple[str, LogLine]]) -> None:
        pattern = compiled(expression)
        first = next((line for text, line in texts if pattern.search(plain(text))), None)
        if first:
            self._found[expression] = _Found([first], 1)

    def _resumed(self, found: _Found) -> bool:
        """Every rank that printed it made progress after it, and no rank broke after it."""
        return bool(found.last) and all(self._table.went_on(rank, order) for (_, rank), order in found.last.items())

    def _strange(self) -> list[Template]:
        kinds = [k for k in self._kinds.values() if k.first and not k.matched and not k.tells and stands_in(_ERROR, k.first.text)]
        often = sorted(kinds, key=lambda k: -k.times)[:20]
        return [Template(k.first, k.times) for k in often if k.first]


# what libraries advise in general in the same line: it tells nothing about this job
_ADVICE = re.compile(
    r"This is most likely caused by .*|This can (?:potentially )?cause a hang.*|For debugging consider passing .*|"
    r"You can specify device_id.*|"
    r"In rare cases this process .*|This typically indicates .*|Due to the asynchronous nature .*|If reserved but unallocated memory .*|"
    r"This (?:may|could) indicate .*"
)


def plain(text: str) -> str:
    """The text without advice that libraries print along."""
    return (
        _ADVICE.sub("", text)
        if "his " in text or "For debugging" in text or "You can" in text or "Due to" in text or "If reserved" in text
        else text
    )


def short(name: str) -> str:
    """A path without the home folder of whoever reads it."""
    home = os.path.expanduser("~")
    return "~" + name[len(home) :] if name.startswith(home + os.sep) else name


def _joined(before: bytes, text: str) -> str:
    """Two lines as one where a terminal or Ray broke a message inside; "" where this does not look broken."""
    if before.rstrip().endswith(b"Last error:"):
        return "NCCL WARN " + text  # PyTorch and NCCL's tests quote the warning below this line, without its head
    if not before or len(before) < 16 or len(before) > 2000 or not text[:1].strip() or _STARTS.match(text):
        if not text.startswith((" ", "\t")) or not before.rstrip().endswith((b":", b",")):
            return ""
    head = before.decode("utf-8", "replace").rstrip("\r\n")
    if not stands_in(_ENDS_OPEN, head):
        return ""
    return head.rstrip() + " " + text.strip() if text[:1] in " \t" else head + text
