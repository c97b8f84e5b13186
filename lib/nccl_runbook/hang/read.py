"""What a hung job left, put together: dumps of its ranks, logs, saved stacks, live looks.
One dump at a time, in any order."""

import collections
import dataclasses
import os
import re
from collections.abc import Iterable
from typing import Any

from nccl_runbook.core.facts import Gap, grouped
from nccl_runbook.core.redact import Redactor, clipped
from nccl_runbook.hang import read_stacks as stacks
from nccl_runbook.hang.dumps import file as dump_file
from nccl_runbook.hang.dumps.columns import HISTORY, MAX_RANKS, Column, Reading
from nccl_runbook.hang.dumps.times import Times, earlier, latecomers
from nccl_runbook.hang.facts import (
    EARLIER,
    Channel,
    Count,
    Difference,
    Dump,
    Group,
    Hang,
    HangFile,
    Op,
    Stack,
    Track,
)
from nccl_runbook.hang.live import ask_answers as live_answers
from nccl_runbook.hang.live.facts import Live, RasAnswer
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.logs.file import Limit
from nccl_runbook.logs.sources import HEAD_BYTES, READ_BY_HANG, SHORT_ENDS, Source, kind, sources
from nccl_runbook.logs.text import attempt_of_name, rank_of_name, said
from nccl_runbook.messages import read as logs
from nccl_runbook.messages.facts import Logs, RankLog

SHOWN = 16  # numbers of each group that are shown
MOST_DIFFERENCES = 8
PARALLEL_BYTES = 12 << 20  # below, more processes cost about as much as they save
LARGE_BYTES = 12 << 20  # one such dump takes some 100 MB as objects: no two at a time
STACK_BYTES = 4 << 20
_Key = tuple[str, str, tuple[int, ...]]  # a group's name, description and members
_MINIBATCHES = re.compile(r"(?i)mini[-_ ]?batch(?:es)?\W{1,4}(\d{1,9})\b|\b(\d{1,9}) mini[-_ ]?batch")


def collect(paths: list[str] | str, limit: Limit | None = None) -> Hang:
    """The facts in these files and folders. Never raises for what is in them: a file that cannot
    be used says why in ``files``."""
    limit = limit or Limit()
    inputs = _Inputs(paths, limit)
    readings = _one_a_rank(inputs)
    before = _earlier_logs(inputs.logs)
    inputs.files += [HangFile(name, "log", None, why) for name, why in before.items()]
    logged = (
        logs.collect(paths, "", None, limit, frozenset(f.name for f in inputs.files), newest=True)
        if inputs.logs
        else Logs([], "", {}, [])
    )  # its tables take 0.1 s
    inputs.files += [HangFile(f.name, "log", problem=f.problem or f.left_out) for f in logged.files]
    times, members = Times(readings, inputs.stamps()), _members(readings, {r.rank for r in logged.ranks})
    odd, late = _odd(readings), latecomers(readings)
    return Redactor(os.environ).json(
        Hang(
            sorted(
                (dataclasses.replace(f, name=logs.short(f.name)) for f in inputs.files), key=lambda f: f.name
            ),
            [
                Dump(
                    rank,
                    "gloo" if reading.gloo else "nccl",
                    reading.entries,
                    times.written.get(rank),
                    odd[rank],
                    reading.order,
                    times.op(rank, reading.last),
                    *(reading.waiting or (None, None)),
                    reading.timed,
                    *late.get(rank, ()),
                )
                for rank, reading in sorted(readings.items())
            ],
            _with_logs(
                [
                    _group(key, certain, readings, inputs.names, times)
                    for key, certain in sorted(members.items())
                ],
                [r for r in logged.ranks if r.rank not in readings],
                logged.ranks,
                {s.rank for s in inputs.stacks},
            ),
            _channels(readings, members, times),
            sorted(inputs.stacks, key=lambda s: (s.rank, s.source)),
            logged,
            _counts(paths, {n for n in inputs.logs if n not in before}, limit),
            times.clocks,
            inputs.looks,
            inputs.ras,
        )
    )


def among(paths: list[str] | str) -> list[str] | str:
    """The same paths if dumps, stacks or answers of RAS are among these files, else ""."""
    heads = (source.peek(HEAD_BYTES) for source in sources(paths))
    return (
        paths
        if any(
            b"pg_config" in head or b"nccl_version" in head or READ_BY_HANG in kind(head)[0] for head in heads
        )
        else ""
    )


def of_record(hang: Hang | Gap, record_path: str) -> Hang:
    """The facts as recorded; for the record of a live look, what that saw."""
    return collect([record_path]) if isinstance(hang, Gap) else hang


class _Inputs:
    """Every file once: dumps read, stacks and live looks taken in, the rest left to the log reader."""

    def __init__(self, paths: list[str] | str, limit: Limit) -> None:
        self._limit = limit
        self.files: list[HangFile] = []
        self.stacks: list[Stack] = []
        self.looks: list[Live] = []
        self.ras: list[RasAnswer] = []
        self.names: dict[int, str] = {}
        self.logs: list[str] = []
        self.read: list[tuple[str, Reading]] = []
        plain: set[str] = set()
        for source in sources(paths, limit=limit):
            if source.problem:
                self.logs.append(source.name)  # the log reader says what is wrong with it
            else:
                self._take(source, plain)
        with limit.paused():
            self._read_plain(sorted(plain))

    def stamps(self) -> dict[int, float]:
        """The time of the file of each rank; none for what lies in an archive."""
        return {rank: os.path.getmtime(name) for rank, name in self.names.items() if os.path.isfile(name)}

    def _take(self, source: Source, plain: set[str]) -> None:
        if not (head := source.peek(4096)):
            self.files.append(HangFile(source.name, "", rank_of(source.name), source.problem or "is empty"))
        elif source.plain and head.startswith(b"\x80"):
            plain.add(source.name)
        elif live_answers.looks_like_ras(head.decode("utf-8", "replace")):
            answers = live_answers.read_ras(
                logs.short(source.name), source.peek(STACK_BYTES).decode("utf-8", "replace")
            )
            self.files.append(
                HangFile(source.name, "ras", None, answers.detail if isinstance(answers, Gap) else "")
            )
            self.ras += [] if isinstance(answers, Gap) else answers
        elif dump_file.looks_like_dump(head):
            data = source.peek(dump_file.MAX_BYTES + 1)
            with self._limit.paused():
                self._keep(source.name, *dump_file.outcome(data))
        elif stacks.looks_like_stacks(head.decode("utf-8", "replace")):
            stack = stacks.read(source.name, source.peek(STACK_BYTES).decode("utf-8", "replace"))
            self.files.append(
                HangFile(
                    source.name,
                    "stack",
                    stack and stack.rank,
                    "" if stack else "the rank is unknown: name the file rankN.txt",
                )
            )
            self.stacks += [stack] if stack else []
        else:
            self.logs.append(source.name)

    def _read_plain(self, names: list[str]) -> None:
        sizes = [os.path.getsize(n) if os.path.exists(n) else 0 for n in names]
        workers = min(4, os.cpu_count() or 1)
        alone = sum(sizes) < PARALLEL_BYTES or workers < 2 or max(sizes) > LARGE_BYTES
        for name, outcome in zip(
            names, map(dump_file.of_file, names) if alone else dump_file.of_files(names, workers)
        ):
            self._keep(name, *outcome)

    def _keep(self, name: str, reading: Reading | None, looks: Any, problem: str) -> None:
        if reading is not None:
            self.read.append((name, reading))
        elif looks:
            whole = stacks.whole_looks(looks)
            self.files.append(
                HangFile(name, "live", None, "" if whole else "is a live look of another version")
            )
            self.looks += whole
            self.stacks += stacks.stacks_of(name, whole)
        else:
            what, rank = ("", None) if problem == dump_file.FOREIGN else ("dump", rank_of(name))
            self.files.append(HangFile(name, what, rank, problem))


def rank_of(name: str) -> int | None:
    """The rank in a dump's name: rank_7, nccl_trace_rank_node01_7, dump-7.json; the last
    number where no word says."""
    base = os.path.basename(name)
    word = re.search(r"rank[_.-]?(\d{1,7})(?![\d_])", base, re.I)
    numbers = re.findall(r"(?<!\d)\d{1,7}(?!\d)", re.sub(r"\.(?:json|pkl|pickle|gz|xz|bin|log)\b", "", base))
    return int(word.group(1)) if word else int(numbers[-1]) if numbers else rank_of_name(name)


def _one_a_rank(inputs: _Inputs) -> dict[int, Reading]:
    """One dump for each rank. Of two that say they are the same rank neither is used, unless one
    is a later dump of the other."""
    claims: dict[int, list[tuple[str, Reading]]] = collections.defaultdict(list)
    for name, reading in sorted(inputs.read, key=lambda pair: pair[0]):
        rank = rank_of(name)
        world = next((ranks for key, (desc, ranks) in reading.members.items() if desc == "default_pg"), ())
        problem = next(
            (
                why
                for applies, why in (
                    (rank is None, "its name contains no rank"),
                    (
                        world and rank not in world,
                        f"its name says rank {rank}, which its default group does not have",
                    ),
                    (
                        any(reading.digest == other.digest for _, other in claims.get(rank, ())),
                        "the same dump as another file",
                    ),
                )
                if applies
            ),
            "",
        )
        if problem:
            inputs.files.append(HangFile(name, "dump", rank, problem))
        else:
            claims[rank].append((name, reading))
    chosen = {rank: newest for rank, rows in claims.items() if (newest := _newest(rank, rows, inputs))}
    for rank, seconds in earlier(chosen, inputs.stamps()).items():
        why = (
            f"{EARLIER} (or its clock is wrong): its log ends {seconds:.0f} s before that of "
            "another rank begins"
        )
        inputs.files = [
            dataclasses.replace(f, problem=why) if f.name == inputs.names[rank] else f for f in inputs.files
        ]
        del chosen[rank], inputs.names[rank]
    return chosen


def _newest(rank: int, rows: list[tuple[str, Reading]], inputs: _Inputs) -> Reading | None:
    rows = sorted(rows, key=lambda row: (row[1].newest_ns, row[0]))
    *older, (name, newest) = rows
    if not all(
        b.newest_ns > a.newest_ns and (b.members == a.members or b.oldest_ns > a.until_ns)
        for (_, a), (_, b) in zip(rows, rows[1:])
    ):
        inputs.files += [
            HangFile(n, "dump", rank, "two files claim this rank, so neither was used") for n, _ in rows
        ]
        return None
    inputs.names[rank] = name
    inputs.files += [HangFile(n, "dump", rank, "an older dump of this rank") for n, _ in older]
    inputs.files.append(
        HangFile(name, "dump", rank, "" if newest.entries or newest.status else "holds no entries")
    )
    return newest


def _earlier_logs(names: list[str]) -> dict[str, str]:
    """Logs of attempts before the last of their launch, and what to say of each."""
    attempts = {name: attempt_of_name(name) for name in names}
    last = {launch: max(numbers) for launch, numbers in grouped(attempts.values()).items()}
    return {
        name: f"{EARLIER}: {last[launch]} is judged, this is {number}"
        for name, (launch, number) in attempts.items()
        if number < last[launch]
    }


def _members(readings: dict[int, Reading], logged: set[int]) -> dict[_Key, bool]:
    """The groups, by name and members: one name may stand for several sets of ranks. Whether a dump
    says who the members are."""
    groups: dict[_Key, bool] = {}
    users = grouped(
        (name, rank)
        for rank, reading in readings.items()
        for name in reading.columns.keys() - reading.members.keys()
    )
    everybody = set(readings)
    for rank, reading in readings.items():
        for name, (desc, ranks) in reading.members.items():
            everybody |= set(ranks)
            if name in reading.columns or rank in ranks and name:
                groups[
                    name, desc or (reading.columns[name].desc if name in reading.columns else ""), ranks
                ] = True
    everybody = (
        set(range(max(everybody | logged, default=-1) + 1)) if len(everybody) < MAX_RANKS else everybody
    )
    for name, ranks in users.items():
        desc = next((r.columns[name].desc for r in readings.values() if name in r.columns), "")
        groups.setdefault((name, desc, tuple(sorted(everybody if desc == "default_pg" else ranks))), False)
    return groups


def _with_logs(
    groups: list[Group], rows: list[RankLog], everybody: list[RankLog], stacked: set[int]
) -> list[Group]:
    """Ranks without a dump, as far as watchdog and heartbeat lines show: last number issued, last
    completed, and which timed out."""
    world = sorted(
        {r.rank for r in everybody}
        | stacked
        | set(range(min(max((r.nranks or 0 for r in everybody), default=0), 1 << 16)))
    )
    for row in rows:
        for label in row.enqueued or {t.group: 0 for t in row.timeouts[:1]}:
            fits = next(
                (i for i, g in enumerate(groups) if label in (g.desc, g.name) and row.rank in g.ranks), None
            )
            if fits is None:
                members = (
                    world
                    if label in ("default_pg", "0", "")
                    else [r.rank for r in everybody if label in r.enqueued]
                )
                fits, groups = len(groups), [*groups, Group(label, label, members, False, [], [], 1)]
            groups[fits] = dataclasses.replace(
                groups[fits],
                tracks=sorted([*groups[fits].tracks, _log_track(row, label)], key=lambda t: t.rank),
            )
    return groups


def _log_track(row: RankLog, label: str) -> Track:
    work = min(
        (
            t
            for t in row.timeouts
            if t.seq is not None and t.group in (label, "" if len(row.enqueued) < 2 else label)
        ),
        key=lambda t: t.seq,
        default=None,
    )
    opened = (
        Op(work.seq or 0, f"{work.op.lower()} {work.numel_in or 0} x ?", "timed-out", work.timeout_ms)
        if work
        else None
    )
    issued, completed = (
        max(row.enqueued.get(label, 0), opened.seq if opened else 0),
        max(0, row.completed.get(label, 0)),
    )
    return Track(row.rank, issued, completed, completed, True, opened, opened, "", " ".join(row.files[:1]))


def _odd(readings: dict[int, Reading]) -> dict[int, list[str] | None]:
    """Of ranks with a step that broke their own habit and few others share, or that nobody else took
    from where others went elsewhere: what their habit, or that of the others, had in the place of such
    steps. None for all others."""
    holders = collections.Counter(step for reading in readings.values() for step in reading.steps)
    passed = collections.Counter(
        place for reading in readings.values() for place in {at for _, at, _ in reading.steps.values()}
    )
    usual = grouped(
        (place, name)
        for reading in readings.values()
        for level, place, names in reading.steps.values()
        if level < 2
        for name in names
    )
    # ranks of groups without a description go different ways by nature
    used = collections.Counter(
        desc for reading in readings.values() for desc in {c.desc for c in reading.columns.values()}
    )
    odd = {
        rank: [
            set(names) if level == 2 else set(usual.get(place, ())) - set(names)
            for step, (level, place, names) in reading.steps.items()
            if level == 2
            and holders[step] <= max(1, len(readings) // 4)
            or level == 1
            and holders[step] == 1
            and passed[place] > 2
            and used[names[0].rpartition(" ")[0]] == len(readings)
        ]
        for rank, reading in readings.items()
    }
    return {rank: sorted(set().union(*steps)) if steps else None for rank, steps in odd.items()}


def _group(
    key: _Key, certain: bool, readings: dict[int, Reading], names: dict[int, str], times: Times
) -> Group:
    name, desc, ranks = key
    columns = {r: readings[r].columns[name] for r in ranks if r in readings and name in readings[r].columns}
    highest = max((c.first + len(c.calls) - 1 for c in columns.values()), default=0)
    start = max(1, highest - SHOWN + 1)
    sound = bool(columns) and all(
        readings[r].status.get(name) == column.reached() for r, column in columns.items()
    )
    done = max((column.reached()[1] for column in columns.values()), default=0)
    tracks = [
        _track(r, readings[r], columns[r], start, highest, names[r], times)
        if r in columns
        else _track_of_status(
            r, readings[r], readings[r].status.get(name) if sound else None, done, start, highest, names[r]
        )
        for r in ranks
        if r in readings
    ]
    return Group(name, desc, list(ranks), certain, tracks, _differences(columns, readings), start)


def _track_of_status(
    rank: int,
    reading: Reading,
    status: tuple[int, int] | None,
    done: int,
    start: int,
    highest: int,
    file: str,
) -> Track:
    """A rank without an entry of the group. ``status``: what its table of groups says, where such tables fit
    the entries of the others; who issued less than those completed (``done``) may have been asked before."""
    if status is None:
        return Track(rank, 0, 0, 0, bool(reading.entries) and not reading.wrapped, source=logs.short(file))
    issued, complete = status
    return Track(
        rank,
        issued,
        complete,
        0,
        issued == complete >= done,
        source=logs.short(file),
        tail="".join(
            "c" if s <= complete else "?" if s <= issued else "." for s in range(start, highest + 1)
        ),
    )


def _track(
    rank: int, reading: Reading, column: Column, start: int, highest: int, file: str, times: Times
) -> Track:
    last, done = (
        column.last.seq,
        max(column.done, column.first + column.states.rfind(b"c") if b"c" in column.states else 0),
    )
    letters = "".join(
        chr(column.states[s - column.first]) if column.first <= s <= last else "." if s > last else "?"
        for s in range(start, highest + 1)
    )
    return Track(
        rank,
        last,
        done,
        reading.joined(column),
        True,
        times.op(rank, column.opened),
        times.op(rank, column.last),
        letters,
        logs.short(file),
    )


def _differences(columns: dict[int, Column], readings: dict[int, Reading]) -> list[Difference]:
    """Numbers at which members called different things. Columns that hold the same bytes are
    compared at the speed of memory."""
    if len(columns) < 2:
        return []
    calls = {h: text for r in columns for h, text in readings[r].calls.items()}
    longest = columns[max(columns, key=lambda r: (len(columns[r].calls), -r))]
    found = []
    for seq in sorted({seq for column in columns.values() for seq in _unlike(longest, column)})[
        :MOST_DIFFERENCES
    ]:
        by_call = grouped(
            (c.calls[seq - c.first], rank)
            for rank, c in columns.items()
            if c.first <= seq < c.first + len(c.calls)
        )
        before = _habit(columns, seq, by_call)
        if not any(
            before.values()
        ):  # nothing stands before it: what other groups of this purpose have there, then
            alike = (
                c
                for rank, r in readings.items()
                if rank not in columns
                for c in r.columns.values()
                if c.desc == longest.desc
            )
            there = collections.Counter(
                c.calls[seq - c.first] for c in alike if c.first <= seq < c.first + len(c.calls)
            )
            before = {
                call: there[call] if there[call] > 1 else 0 for call in by_call
            }  # one witness may be a culprit, too
        found.append(
            Difference(
                seq,
                {calls[h]: sorted(ranks) for h, ranks in by_call.items()},
                {calls[h]: n for h, n in before.items()},
                {calls[h]: calls[after] for h in by_call if (after := _next(longest, h)) is not None},
            )
        )
    return found


def _unlike(left: Column, right: Column) -> list[int]:
    low, high = (
        max(left.first, right.first),
        min(left.first + len(left.calls), right.first + len(right.calls)),
    )
    a, b = (column.calls[low - column.first : high - column.first] for column in (left, right))
    if high <= low or a.tobytes() == b.tobytes():
        return []
    return [low + i for i, (x, y) in enumerate(zip(a, b)) if x != y][:MOST_DIFFERENCES]


def _habit(columns: dict[int, Column], seq: int, by_call: Iterable[int]) -> dict[int, int]:
    """How often each call had followed, in this group, what stands before ``seq``: on the
    rank that remembers most."""
    best = max(columns.values(), key=lambda c: min(seq, c.first + len(c.calls)) - c.first)
    end = seq - best.first
    before = best.calls[max(0, end - HISTORY) : end]
    pairs = collections.Counter(b for a, b in zip(before, before[1:]) if a == before[-1])
    return {call: pairs[call] for call in by_call}


def _next(column: Column, call: int) -> int | None:
    """What most often follows ``call`` on the rank that remembers most."""
    recent = column.calls[-HISTORY:]
    return next(
        (
            other
            for other, _ in collections.Counter(
                b for a, b in zip(recent, recent[1:]) if a == call
            ).most_common(1)
        ),
        None,
    )


def _counts(paths: list[str] | str, names: set[str], limit: Limit) -> list[Count]:
    """What each rank said last about its number of minibatches."""
    last: dict[int, Count] = {}
    for source in (s for s in sources(paths, limit=limit) if s.name in names):
        found = (
            (number, match)
            for rows in source.rows(ends=SHORT_ENDS)
            for number, raw in enumerate(rows, source.lines + 1)
            if (match := _MINIBATCHES.search(raw.decode("utf-8", "replace")))
        )
        for number, match in found:
            who = said(match.string)
            rank = rank_of_name(source.name) if who.rank is None else who.rank
            if rank is not None:
                last[rank] = Count(
                    rank,
                    int(match[1] or match[2]),
                    LogLine(logs.short(source.name), number, clipped(who.text.strip(), 300), rank),
                )
    return [last[rank] for rank in sorted(last)]


def _channels(readings: dict[int, Reading], members: Iterable[_Key], times: Times) -> list[Channel]:
    """Open sends and receives, ends as global ranks, both sides together."""
    by_rank = {(name, rank): ranks for name, _, ranks in members for rank in ranks}
    sides = grouped(
        ((name, ranks[src], ranks[dst]), (sends, number, times.op(rank, op)))
        for rank, reading in sorted(readings.items())
        for (name, src, dst, sends), (number, op) in reading.sides.items()
        for ranks in [by_rank.get((name, rank), ())]
        if max(src, dst) < len(ranks) and ranks[src if sends else dst] == rank
    )
    opened = {ends: {sends: number for sends, number, _ in rows} for ends, rows in sides.items()}
    return [
        Channel(
            name,
            src,
            dst,
            both.get(True, 0 if src in readings else -1),
            both.get(False, 0 if dst in readings else -1),
            sides[name, src, dst][-1][2],
        )
        for (name, src, dst), both in sorted(opened.items())
    ]
