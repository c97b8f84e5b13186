"""Everything that a job left, looked through once: which known messages it holds, and a table of its ranks.

Most lines of a log are alike but for their numbers. Each kind is looked at once; only if it tells something
is every line of it read, so that 64 ranks of NCCL's INFO cost little more than one.
"""

import collections
import dataclasses
import io
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from nccl_runbook.core.redact import Redactor, clipped
from nccl_runbook.core.secret_lines import masked_below
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.logs.file import Limit
from nccl_runbook.logs.source import Source
from nccl_runbook.logs.sources import read_each, sources
from nccl_runbook.logs.text import LINE_CHARACTERS, Said, attempt_of_name, pieces, rank_of_name, who_says
from nccl_runbook.logs.tracebacks import Tracebacks
from nccl_runbook.messages import clues
from nccl_runbook.messages.excerpt import CHATTER, MAX_SPOKEN, STAMP, is_ignored, own_frame, short, written
from nccl_runbook.messages.facts import CONTEXT, OWN_FRAME, Logs, Seen, Template
from nccl_runbook.messages.kinds import At, Kind, Kinds
from nccl_runbook.messages.lines import EXPRESSIONS, LAUNCHERS, ends, joined, matcher, plain, shows, visible
from nccl_runbook.messages.matcher import Matcher
from nccl_runbook.messages.read_ranks import Ranks

MAX_LINES = 8  # kept of one message
TAIL_LINES = 4000  # of each file are read whole, for the last word of every rank
_TIMED_OUT = re.compile(EXPRESSIONS["rank-work"] + "|checkTimeout")
PASTED = "the pasted text"  # stands for a file in the lines of the reporter that a program printed


@dataclasses.dataclass
class _Found:
    """Lines of one message while they are collected."""

    lines: list[LogLine] = dataclasses.field(default_factory=list)
    times: int = 0
    last: dict[tuple[str, int | None], int] = dataclasses.field(default_factory=dict)  # (file, rank) -> order


def collect(
    paths: list[str] | str,
    context: str = "",
    stdin: BinaryIO | None = None,
    limit: Limit | None = None,
    skip: frozenset[str] = frozenset(),
    newest: bool = False,
) -> Logs:
    """The facts of these logs, except files in ``skip``; with ``newest`` only the last attempt counts for
    ranks. Never raises for their content: ``files`` says what could not be read."""
    # hidden in the whole text: a value may stand below its name
    typed = [clipped(t, LINE_CHARACTERS) for t in Redactor(os.environ).hidden(context).splitlines()[:1000]]
    pasted = "".join(f"{line if STAMP.search(line) else ''}\n" for line in typed).encode("utf-8", "replace")
    texts = itertools.chain(
        [Source(PASTED, len(pasted), io.BytesIO(pasted))] if pasted.strip() else [],
        sources(paths, stdin, limit),
    )
    logs = _Reader(Ranks(newest)).facts((s for s in texts if s.name not in skip), "\n".join(typed))
    return Redactor(os.environ).json(logs)


def read_sources(texts: Iterable[Source]) -> Logs:
    """The facts of texts that are at hand already."""
    return _Reader(Ranks()).facts(texts, "")


@dataclasses.dataclass(eq=False)
class _Reader:
    """One pass over all texts."""

    _table: Ranks
    _kinds: Kinds = dataclasses.field(default_factory=Kinds)
    _found: dict[str, _Found] = dataclasses.field(default_factory=lambda: collections.defaultdict(_Found))
    _order: int = 0  # lines up to this one
    _read: int = 0  # lines in sources before this one
    _began: dict[str, int] = dataclasses.field(default_factory=dict)  # source -> lines before it
    _words: list[str] = dataclasses.field(default_factory=list)  # of a reporter, in the texts

    def read(self, source: Source) -> None:
        """Take in one text; a sentence in ``source.left_out`` where time or space ran out."""
        tail: collections.deque[tuple[int, bytes]] = collections.deque(maxlen=TAIL_LINES)
        self._kinds.above = b""
        self._kinds.tracebacks = Tracebacks()
        self._began[source.name] = self._read
        for rows in source.rows(logs_only=True):
            self._words += written(rows) if not source.lines else []
            self._rows(source, rows, tail)
        self._last_words(source.name, tail, source.lines)

    def _rows(self, source: Source, rows: list[bytes], tail: collections.deque[tuple[int, bytes]]) -> None:
        own_rank = rank_of_name(source.name)
        begin = source.lines + 1
        for index, kind, above in self._kinds.of(source.name, begin, rows):
            kind.times, kind.last = kind.times + 1, self._read + begin + index
            if (kind.messages or kind.about_rank) and not (
                kind.is_enough() or ("rank-error" in kind.about_rank and is_ignored(rows, index))
            ):
                self._order = self._read + begin + index
                for text in pieces(rows[index]):
                    self._take(kind, source.name, begin + index, text, above, own_rank)
                if "rank-error" in kind.about_rank and kind.times <= MAX_LINES:
                    above = index - own_frame(rows[: index + 1])
                    if above < index:
                        who = who_says(rows[above].decode("utf-8", "replace"))
                        self._found[OWN_FRAME].lines.append(
                            self._line(source.name, begin + above, who, own_rank)
                        )
        last = rows[-TAIL_LINES:]
        # a long row is cut to its ends; so many rows in one piece are short ones
        texts = last if len(last) == TAIL_LINES else map(ends, last)
        tail.extend(enumerate(texts, begin + len(rows) - len(last)))

    def _take(
        self, kind: Kind, name: str, number: int, text: str, above: bytes, own_rank: int | None
    ) -> None:
        whole = joined(above, text) if above and not matcher().pattern("rank-again").search(text) else ""
        quoted = whole.startswith("NCCL WARN ")
        who = who_says(text if quoted else whole or text)
        line = self._line(name, number - (bool(whole) and not quoted), who, own_rank)  # where it begins
        own = self._line(name, number, who_says(text), own_rank) if whole else line
        if not kind.first or self._table.attempts.is_earlier(kind.first):
            kind.first = own
        parts = (
            [plain(who_says(one).text) for one in (text, above.decode("utf-8", "replace"))]
            if whole and not quoted
            else []
        )
        for message in kind.messages:
            pattern = matcher().pattern(message)
            # not a message that was broken: each line is quoted as it is
            alone = any(map(pattern.search, parts))
            self._keep(
                message,
                pattern,
                own if alone else line,
                [text] if alone or not whole else [text, whole],
                who.times,
            )
        about = EXPRESSIONS if whole else kind.about_rank
        if kind.about_rank:
            words = whole if quoted else who.text
            matches = {name: m for name in about if (m := matcher().pattern(name).search(words))}
            if kind.raised:
                matches.setdefault("rank-error", re.match("", who.text))
            self._table.take(line, words, who.pid, self._order, matches)

    def _line(self, name: str, number: int, who: Said, own_rank: int | None) -> LogLine:
        rank = own_rank if who.rank is None else who.rank
        rank = self._table.of_pid.get((who.host or name, who.pid)) if rank is None and who.pid else rank
        return LogLine(name, number, clipped(who.text.strip(), 1000), rank, who.host, who.time)

    def _keep(
        self, message: str, pattern: re.Pattern[str], line: LogLine, texts: list[str], times: int = 1
    ) -> None:
        if not any(shows(pattern, text) for text in texts):
            return  # another line of this kind, with other numbers
        kept = self._found[message]
        kept.times += times
        kept.last[line.file, line.rank] = self._order
        if message == "job-ended" and " DUE TO " not in texts[0]:  # which would be Slurm's reason
            self._table.over_at = self._order
        lines = [  # those of the last attempt count, and the last state of a rank
            k
            for k in kept.lines
            if not self._table.attempts.is_earlier(k)
            and (k.rank != line.rank or message not in clues.catalogue()["states"])
        ]
        if len(lines) < MAX_LINES and self._is_new(line, lines):
            kept.lines = [*lines, line]

    def _is_new(self, line: LogLine, kept: list[LogLine]) -> bool:
        """Another rank, or, if the rank is unknown, no more than a few lines of one host."""
        if line.rank is None:
            return sum(line.host == k.host and k.rank is None for k in kept) < MAX_LINES // 2 or not line.host
        return all(line.rank != k.rank for k in kept)

    def _last_words(self, name: str, tail: Sequence[tuple[int, bytes]], lines: int) -> None:
        own_rank = rank_of_name(name)
        texts = [raw.decode("utf-8", "replace") for _, raw in tail]
        for (number, _), row in zip(tail, masked_below(texts, Redactor({}).hidden)):
            nobody = own_rank is None and row.isascii() and not re.search(r"\d", row)
            for text in () if nobody else pieces(row.encode())[-1:]:
                line = self._line(name, number, who_says(text), own_rank)
                if line.text and line.rank is not None:
                    self._table.last(line, self._read + number)
        self._read += lines

    def facts(self, texts: Iterable[Source], context: str) -> Logs:
        """Everything in these texts together; what must or must not be beside a clue is asked only if its
        line was seen."""
        files = read_each(texts, self.read)
        self._read_context([line for line in context.splitlines() if not STAMP.search(line)])
        no_chatter = ((at, kind) for at, kind in self._kinds.all() if not CHATTER.search(at[2]))
        telling = list(itertools.islice(no_chatter, MAX_SPOKEN + 1))
        if len(telling) <= MAX_SPOKEN and (telling or context):
            self._ask(telling, context, clues.catalogue()["spoken"])
        fired = [
            c
            for c in clues.clues()
            if c.message in self._found and (c.stays or not self._resumed(c.message, self._found[c.message]))
        ]
        self._ask(
            list(self._kinds.all()),
            context,
            {i: clues.catalogue()["beside"][i] for c in fired for i in (*c.also, *c.without)},
        )
        by_message = {i: Seen(f.lines, f.times, self._resumed(i, f)) for i, f in self._found.items()}
        foreign = (
            bool(self._kinds.first or context)
            and not (self._kinds.ours or self._kinds.is_training())
            and not by_message.keys() - clues.catalogue()["fits"].keys()
        )
        begun = (
            name
            for name in LAUNCHERS
            if name in self._kinds.launchers or matcher().pattern(name).search(plain(context))
        )
        failures = self._table.failures()
        numbers = {attempt_of_name(f.name)[1] for f in files}
        return Logs(
            files=[dataclasses.replace(f, name=short(f.name)) for f in files],
            context="\n".join([context, *self._words]),
            seen=by_message,
            ranks=self._table.rows(),
            launcher=next(begun, "").removeprefix("launcher-"),
            unknown=self._strange(),
            foreign=foreign,
            nccl_versions=self._table.versions(),
            failed=next((line for line, _, _ in failures), None),
            timeout=next((line for line, _, _ in failures if _TIMED_OUT.search(line.text)), None),
            again=[*self._table.attempts.last.values()],
            raised=next((line for line, _, own in failures if own), None),
            clocks=self._table.clocks.offsets(),
            apart=self._table.apart(),
            here=os.uname().nodename,
            attempts=max(
                1 + max(self._table.again_in.values(), default=0),
                len(numbers) and max(numbers) - min(numbers) + 1,
            ),
            catalogue=clues.version(),
        )

    def _read_context(self, lines: list[str]) -> None:
        """Take in the reporter's own words, line by line."""
        asked = (
            Matcher({**clues.catalogue()["printed"], **clues.catalogue()["spoken"]}, clues.needs)
            if lines
            else Matcher({})
        )
        for index, messages in asked.may_match([line.encode("utf-8", "replace") for line in lines]).items():
            line = LogLine(CONTEXT, index + 1, clipped(lines[index].strip(), 1000))
            for message in messages:
                self._keep(message, asked.pattern(message), line, [lines[index]])

    def _ask(
        self, kinds: Sequence[tuple[At, Kind | None]], context: str, expressions: dict[str, str]
    ) -> None:
        """Keep the first line that matches, of each that was not found yet; below all kinds are the
        reporter's words, as one."""
        asked = Matcher({i: e for i, e in expressions.items() if i not in self._found}, clues.needs)
        rows = visible([at[2] for at, _ in kinds])
        rows = [
            "\r".join(kind.texts()).encode() if kind and kind.first else raw
            for raw, (_, kind) in zip(rows, kinds)
        ]
        for at, messages in asked.may_match(
            [*rows, context.replace("\n", " ").encode("utf-8", "replace")]
        ).items():
            kind = kinds[at][1] or Kind(kinds[at][0]) if at < len(kinds) else None
            texts = kind.texts() if kind else pieces(context.encode())
            for message in (m for m in messages if m not in self._found):
                for text in [text for text in texts if shows(asked.pattern(message), text)][:1]:
                    line = self._first(text, kind)
                    last = {(line.file, line.rank): self._began.get(line.file, 0) + line.line}
                    self._found[message] = _Found([line], 1, {} if line.file == CONTEXT else last)

    def _first(self, text: str, kind: Kind | None) -> LogLine:
        """The first line of a kind, None for the reporter's words."""
        if kind is None:
            return LogLine(CONTEXT, 1, clipped(text, 1000))
        return kind.first or self._line(*kind.at[:2], who_says(text), rank_of_name(kind.at[0]))

    def _resumed(self, message: str, kept: _Found) -> bool:
        """Every rank that printed it made progress after it, and no rank broke after it."""
        ended = any(c.message == message and c.cause in clues.ENDED | {"peer-crashed"} for c in clues.clues())
        codes = self._found["nccl-returned"].last if "nccl-returned" in self._found else {}
        last = [(*who, at, ended or codes.get(who, -1) > at) for who, at in kept.last.items()]
        return bool(last) and all(self._table.went_on(*one) for one in last)

    def _strange(self) -> list[Template]:
        odd = [(self._first(k.texts()[0], k), k) for k in self._kinds.odd()]
        shown = ((line, k) for line, k in odd if not self._table.went_on(k.at[0], line.rank, k.last))
        return [Template(line, k.times) for line, k in itertools.islice(shown, 20)]
