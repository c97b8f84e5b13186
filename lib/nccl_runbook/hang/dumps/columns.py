"""A decoded dump made small: columns instead of entries, and what its last operations tell.

Formats read in PyTorch's sources: 1.1 (torch 2.2: `seq_id`, `pg_id`, no members), 1.4 (2.3), 2.2 to 2.10
(2.4 to 2.15); dumps of 2.11 with NCCL and of 2.13 with Gloo seen. An operation inside a coalesced group
has no events of its own: its state is that of the group's last entry, `coalesced`. Retired without being
completed means timed out with NCCL (NCCLUtils.hpp, 2.5); Gloo retires everything that returns, and records
no send and no recv (2.13, seen).
"""

import array
import collections
import dataclasses
import hashlib
import json
import marshal
import math
import operator
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from nccl_runbook.core.facts import grouped
from nccl_runbook.core.redact import clipped
from nccl_runbook.hang.facts import Op, needs_all

MAX_RANKS = 1 << 17
HISTORY = 2000  # entries in which a rank's habits are looked for
TAIL = 64  # the last ones, which may break them
MOST_DIMENSIONS = 64
ISSUED = "issued "  # before the name of an operation of which only that is known
RECENT, LEAST = 200, 16  # operations over which the time in them is taken
_P2P = re.compile(r"(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})")
# numbers of elements that must be the same on every rank; other operations are compared by name only
# (all_to_all, gather, scatter, ...)
_SAME_IN = ("all_reduce", "allreduce", "broadcast", "reduce", "reduce_scatter")
_SAME_OUT = ("all_gather", "allgather")
_EMPTY = {
    "time_discovered_completed_ns": None,
    "input_dtypes": [],
    "is_p2p": False,
    "p2p_seq_id": 0,
    "retired": False,
    "input_sizes": [],
    "output_sizes": [],
    "time_created_ns": 0,
    "timeout_ms": 0,
    "frames": [],
}
STATES = {"c": "completed", "s": "started", "o": "scheduled", "t": "timed-out", "r": "returned"}


class Refused(Exception):
    """A file that is no usable dump; one sentence."""


@dataclasses.dataclass
class Column:
    """One group on one rank: calls (hashes) and states (letters) of the numbers from ``first`` on;
    ``opened`` and ``last`` by this rank's clock. ``done``: the last complete one that the dump's own
    table of groups tells, 0 where it tells none: a dump of active operations alone (`onlyActive`, torch
    2.5) holds no complete entry."""

    desc: str
    first: int
    calls: array.array
    states: bytes
    opened: Op | None
    last: Op
    done: int = 0

    def reached(self) -> tuple[int, int]:
        """The last number issued, and the last before anything that is open."""
        return self.last.seq, self.opened.seq - 1 if self.opened else self.last.seq


@dataclasses.dataclass
class Reading:
    """A whole dump, small. ``members``: group -> (description, ranks); ``sides``: (group, src, dst, is send)
    -> (open ones, the first); ``steps``: see _steps; ``order``: what is open, as issued; ``waiting``: share
    of the last while in operations, ms apart; ``ends``: when the last ones were issued and when they ended,
    in ns of this rank's clock, and where no end is recorded when the next one was issued; ``oldest_ns``,
    ``newest_ns``: when the first and the last one that it holds were issued; ``until_ns``: when the last
    one was issued or ended; ``status``: see take_status; ``timed``: it records when its GPU began something
    (TORCH_NCCL_ENABLE_TIMING)."""

    gloo: bool
    entries: int
    wrapped: bool
    oldest_ns: int
    newest_ns: int
    until_ns: int
    members: dict[str, tuple[str, tuple[int, ...]]]
    columns: dict[str, Column]
    calls: dict[int, str]
    sides: dict[tuple[str, int, int, bool], tuple[int, Op]]
    steps: dict[int, tuple[int, int, tuple[str, ...]]]
    order: list[str]
    last: Op | None
    waiting: tuple[float, float] | None
    ends: dict[str, tuple[int, int]]
    status: dict[str, tuple[int, int]]
    timed: bool
    digest: bytes

    def joined(self, column: Column) -> int:
        """The number of the last complete operation that no member finishes alone, 0 for
        none: all have issued it."""
        return next(
            (
                column.first + i
                for i in range(len(column.states) - 1, -1, -1)
                if column.states[i] == 99 and needs_all(self.calls[column.calls[i]])
            ),
            0,
        )


def condense(dump: Any, digest: bytes) -> Reading:
    """The dump, small. Refused, or any error of lookup or type, if it does not look like one."""
    if not isinstance(dump, dict) or not isinstance(
        dump.get("entries", [] if "pg_config" in dump else None), list
    ):
        raise Refused("is not a flight-recorder dump: it has no entries")
    entries = _alike(dump.get("entries", []))
    members = {
        _short(k): (_short(v.get("desc", "")), ranks_of(v["ranks"]))
        for k, v in (dump.get("pg_config") or {}).items()
    }
    table = _Table(entries)
    opened = sorted(table.open_ats)[:TAIL]
    last = [_number(e["time_created_ns"]) for e in entries[-TAIL:]]
    return Reading(
        table.gloo,
        len(entries),
        bool(entries)
        and int(entries[0].get("record_id") or 0) > 0
        and any(c.first > 1 for c in table.columns.values()),
        _number(entries[0]["time_created_ns"]) if entries else 0,
        max(last, default=0),
        max([*last, *(_number(e["time_discovered_completed_ns"]) for e in entries[-TAIL:])], default=0),
        members,
        table.columns,
        table.calls,
        table.sides,
        _steps(entries, opened),
        _order(entries, opened),
        _last(entries[-1]) if entries else None,
        _waiting(entries),
        _ends(entries, members),
        table.take_status(dump.get("pg_status"), members),
        any(e.get("time_discovered_started_ns") for e in entries[-RECENT:]),
        digest,
    )


def _alike(entries: list) -> list:
    """The entries in the shape of torch 2.4 and later, whatever wrote them; those
    of JSON have lists for pairs."""
    first = entries[0] if entries else {}
    missing = {k: v for k, v in _EMPTY.items() if k not in first}
    if not missing and "collective_seq_id" in first and isinstance(first.get("process_group"), tuple):
        return entries
    number = "collective_seq_id" if "collective_seq_id" in first else "seq_id"
    return [
        {
            **missing,
            **e,
            "collective_seq_id": e.get(number),
            "process_group": tuple(
                e["process_group"] if "process_group" in first else (str(e.get("pg_id")), "")
            ),
        }
        for e in entries
    ]


def _short(value: Any) -> str:
    """A name, for a page or a terminal; "" for what is none: a value that holds itself many
    times over is endless as text."""
    return (
        "".join(c if c.isprintable() else "?" for c in clipped(str(value), 200))
        if isinstance(value, (str, int, float))
        else ""
    )


def _number(value: Any) -> int:
    """Raises OverflowError where no clock and no counter of a recorder can be."""
    return int.from_bytes(int(value or 0).to_bytes(8, "big", signed=True), "big", signed=True)


def ranks_of(value: Any) -> tuple[int, ...]:
    """The members of a group, "[0, 1]" or a list; numbers and nothing else, never evaluated."""
    ranks = json.loads(value) if isinstance(value, str) and len(value) < 16 * MAX_RANKS else value
    if (
        not isinstance(ranks, list)
        or len(ranks) > MAX_RANKS
        or not all(type(r) is int and 0 <= r < 1 << 24 for r in ranks)
    ):
        raise Refused("its table of groups contains ranks that are not numbers; the table was not used")
    return tuple(sorted(set(ranks)))


class _Table:
    """Entries sorted into a column for each group, and the open ones that go from point to point."""

    def __init__(self, entries: list) -> None:
        self._entries = entries
        self.gloo = bool(entries) and entries[-1]["profiling_name"].startswith("gloo:")
        self.calls: dict[int, str] = {}
        self.open_ats: list[int] = []
        marks = list(map(operator.itemgetter("profiling_name", "is_p2p"), entries))
        alone = {mark for mark in set(marks) if mark[1] or _P2P.search(mark[0])}
        kept = self._sorted(
            [at for at, mark in enumerate(marks) if mark not in alone] if alone else range(len(entries))
        )
        self.columns = {_short(group[0]): self._column(group, rows) for group, rows in kept.items()}
        self.sides = self._sides([at for at, mark in enumerate(marks) if mark in alone] if alone else [])

    def _sorted(self, ats: Sequence[int]) -> dict[tuple, list]:
        """(number, call, letter, index) by group, of these entries.
        Whatever is the same in many is looked at once."""
        entries = self._entries if len(ats) == len(self._entries) else [self._entries[at] for at in ats]
        known: dict[tuple, tuple[list, int, str]] = {}
        kept: dict[tuple, list] = {}
        # marshalled with references: what holds itself many times over stays small
        sizes = map(
            marshal.dumps, map(operator.itemgetter("input_sizes", "output_sizes", "input_dtypes"), entries)
        )
        words = map(operator.itemgetter("process_group", "profiling_name", "state", "retired"), entries)
        ends = map(bool, map(operator.itemgetter("time_discovered_completed_ns"), entries))
        for key, at, seq in zip(
            zip(words, sizes, ends), ats, map(operator.itemgetter("collective_seq_id"), entries)
        ):
            if (row := known.get(key)) is None:
                row = known[key] = self._remember(self._entries[at], kept)
            row[0].append((seq, row[1], row[2], at))
        if (
            self.gloo and ats[-1:] and ats[-1] == len(self._entries) - 1
        ):  # a time-out returns, too: of the very last one nobody can tell
            last = kept[self._entries[-1]["process_group"]]
            last[-1] = (*last[-1][:2], "r" if last[-1][2] == "c" else last[-1][2], last[-1][3])
        return kept

    def _remember(self, entry: dict, kept: dict[tuple, list]) -> tuple[list, int, str]:
        """The place of an entry, the number of its call, and the letter of its state."""
        name, state = entry["profiling_name"], entry["state"]
        op = _short(clipped(name.rpartition(":")[2].strip("_"), 60))
        sizes = (
            entry["output_sizes"]
            if op.startswith(_SAME_OUT)
            else entry["input_sizes"]
            if op.startswith(_SAME_IN)
            else []
        )
        dtypes = entry["input_dtypes"]
        if op in ("all_reduce", "allreduce", "broadcast") and entry["input_sizes"] != entry["output_sizes"]:
            raise Refused(f"is damaged: {op} has different input and output sizes")
        text = (
            f"{op} {sum(map(_numel, sizes))} x {_short(dtypes[0])[:20] if dtypes else '?'}" if sizes else op
        )
        number = int.from_bytes(
            hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big"
        )
        self.calls[number] = text
        # other backends retire what returns, or through the hook of torch 2.15 what
        # is issued (FlightRecorderHook.cpp)
        if (
            state == "completed"
            or entry["time_discovered_completed_ns"]
            or entry["retired"]
            and not name.startswith(("nccl:", "xccl:"))
        ):
            letter = "c"
        else:
            letter = "t" if entry["retired"] else "s" if state == "started" else "o"
        return kept.setdefault(entry["process_group"], []), number, letter

    def _column(self, group: tuple, rows: list) -> Column:
        """The rows of one group. Operations of a coalesced group share its number:
        the last one stands for it."""
        seqs, calls, states, ats = zip(*rows)
        _number(seqs[0]), _number(seqs[-1])
        if seqs != tuple(range(seqs[0], seqs[0] + len(seqs))):
            rows = sorted({row[0]: row for row in rows}.values())
            gap = max((i for i in range(1, len(rows)) if rows[i][0] != rows[i - 1][0] + 1), default=0)
            seqs, calls, states, ats = zip(*rows[gap:])  # what lies before a hole cannot be counted on
        still = [i for i, letter in enumerate(states) if letter != "c"]
        self.open_ats += [ats[i] for i in still]
        opened, last = (
            None if i is None else _op(self._entries[ats[i]], seqs[i], self.calls[calls[i]], states[i])
            for i in (still[0] if still else None, -1)
        )
        return Column(
            _short(group[1]),
            int(seqs[0]),
            array.array("Q", calls),
            "".join(states).encode("ascii"),
            opened,
            last,
        )

    def take_status(self, status: Any, names: Iterable[str]) -> dict[str, tuple[int, int]]:
        """The last number issued and the last complete one of each group, as the dump's own table of groups
        has them. With sends and receives it counts something else, and with Gloo what timed out counts
        as complete (torch 2.13, seen): whoever asks compares it with the entries that there are. It names
        groups by local numbers, which rise as their names do (torch 2.8, NCCL, seen)."""
        status = status if isinstance(status, dict) and not self.gloo else {}
        rows = {k: v for k, v in status.items() if k.isdecimal() and isinstance(v, dict)}
        ids = {
            _short(group[0]): str(e.get("pg_id"))
            for group, e in {e["process_group"]: e for e in self._entries}.items()
        }
        known = [name for name in names if name.isdecimal()]
        in_order = dict(zip(sorted(known, key=int), sorted(rows, key=int))) if len(known) == len(rows) else {}
        in_order = in_order if all(in_order.get(name) == number for name, number in ids.items()) else {}
        counts = {
            name: tuple(
                max(0, _number(rows[n].get(f"last_{word}_collective"))) for word in ("enqueued", "completed")
            )
            for name, n in {**in_order, **ids}.items()
            if n in rows
        }
        for name, column in self.columns.items():
            if column.opened and name in counts and counts[name][1] == column.opened.seq - 1:
                column.done = counts[name][1]
        return counts

    def _sides(self, loose: list[int]) -> dict[tuple[str, int, int, bool], tuple[int, Op]]:
        """Open sends and receives by group, ends and direction. One of a batch has the state of the
        batch's last entry, `coalesced`."""
        ends = {
            (self._entries[at]["process_group"], self._entries[at]["p2p_seq_id"]): self._entries[at]
            for at in loose
            if self._entries[at]["profiling_name"].endswith("coalesced")
        }
        sides: dict[tuple[str, int, int, bool], tuple[int, Op]] = {}
        for at in loose:
            entry = self._entries[at]
            match = _P2P.search(entry["profiling_name"])
            end = ends.get((entry["process_group"], entry["p2p_seq_id"]), entry)
            if not match or end["state"] == "completed" or end["time_discovered_completed_ns"]:
                continue
            self.open_ats.append(at)
            sends, here, there = match[1] == "send", int(match[2]), int(match[3])
            key = (
                _short(entry["process_group"][0]),
                here if sends else there,
                there if sends else here,
                sends,
            )
            number, first = sides.get(key, (0, _op(entry, _number(entry["p2p_seq_id"]), match[0], "o")))
            sides[key] = (number + 1, first)
        return sides


def _numel(sizes: list) -> int:
    if len(sizes) > MOST_DIMENSIONS:
        raise ValueError(f"a tensor of {len(sizes)} dimensions")
    return math.prod(map(int, sizes))


def _op(entry: dict, seq: int, call: str, letter: str) -> Op:
    """An entry as a fact, with the frame of the user's own code; its age is not known here."""
    return Op(
        seq,
        call,
        STATES[letter],
        _number(entry["timeout_ms"]),
        own_frame(entry["frames"]),
        created_ns=_number(entry["time_created_ns"]),
    )


def own_frame(frames: Any) -> str:
    """ "step, train.py:40": the innermost frame that is neither torch's nor installed; "" for none."""
    rows = [f for f in frames if isinstance(f, dict)][:64] if isinstance(frames, list) else []
    own = [
        f
        for f in rows
        if not re.search(r"/(?:site|dist)-packages/|/lib/python3|^<|/torch/", _text(f, "filename"))
    ] or rows
    if not own:
        return ""
    name, file, line = (_text(own[0], key) for key in ("name", "filename", "line"))
    return _short(f"{clipped(name, 80)}, {clipped(os.path.basename(file), 80)}:{line[:8]}")


def _text(frame: dict, key: str) -> str:
    value = frame.get(key)
    return str(value) if isinstance(value, (str, int)) else ""


def _waiting(entries: list) -> tuple[float, float] | None:
    """The share of time that this rank's last operations were under way, as torch saw them end, and ms from
    one to the next; None for too few, or where nothing tells."""
    rows = sorted(
        (e["time_created_ns"], e["time_discovered_completed_ns"])
        for e in entries[-RECENT:]
        if e["time_discovered_completed_ns"]
    )
    busy = until = 0
    for created, done in rows:
        busy, until = busy + max(0, done - max(created, until)), max(until, done)
    if len(rows) < LEAST or until <= rows[0][0]:
        return None
    return round(min(1.0, busy / (until - rows[0][0])), 3), round((until - rows[0][0]) / 1e6 / len(rows), 3)


def _ends(entries: list, members: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, int]]:
    """By the name that all members have for an operation. One name may stand for several groups, so that
    its members belong to it."""
    last = [e for e in entries[-TAIL:] if not _is_p2p(e)]
    done = [(e, e["time_discovered_completed_ns"]) for e in last if e["time_discovered_completed_ns"]]
    names = {name: f"{name} {zlib.crc32(repr(ranks).encode())}" for name, (_, ranks) in members.items()}
    rows, what = (done, "") if done else (_followed(last), ISSUED)
    return {
        f"{what}{names.get(name, name)}:{e['collective_seq_id']}": (
            _number(e["time_created_ns"]),
            _number(at),
        )
        for e, at in rows
        if needs_all(e["profiling_name"].rpartition(":")[2].strip("_"))
        for name in [_short(e["process_group"][0])]
    }


def _followed(entries: list) -> list[tuple[dict, int]]:
    """Each with the time of what its thread issued next: with Gloo, which blocks, it had ended by then."""
    return [
        (entry, after["time_created_ns"])
        for rows in grouped((_text(entry, "thread_id"), entry) for entry in entries).values()
        for entry, after in zip(rows, rows[1:])
    ]


# --- the order in which this rank issued its last operations, against what it did before


def _steps(entries: list, opened: list[int]) -> dict[int, tuple[int, int, tuple[str, ...]]]:
    """Which operation follows which, up to the first that is open, hashed: (how new, hash of the predecessor,
    the operation). 0: taken before the last ones, or twice; 1: once, among the last ones; 2: the same, and
    the predecessor had been followed by others twice or more; then in place of the operation those others."""
    until = (opened[0] if opened else len(entries) - 1) + 1
    marks = list(
        map(operator.itemgetter("process_group", "profiling_name"), entries[max(0, until - HISTORY) : until])
    )
    name = {mark: _step_name(*mark) for mark in dict.fromkeys(marks)}
    steps = [name[mark] for mark in marks]
    cut = max(0, len(steps) - TAIL)
    levels = dict.fromkeys(zip(steps[:cut], steps[1:cut]), 0)
    followed = collections.Counter(steps[: max(0, cut - 1)])
    last = steps[max(0, cut - 1) :]
    again = collections.Counter(zip(last, last[1:]))
    for before, after in zip(last, last[1:]):
        levels.setdefault(
            (before, after), 0 if again[before, after] > 1 else 2 if followed[before] >= 2 else 1
        )
        followed[before] += 1
    usual = grouped(pair for pair, level in levels.items() if level == 0)
    return {
        _hash(f"{before}>{after}"): (
            level,
            _hash(before),
            tuple(usual.get(before, ())) if level == 2 else (after,),
        )
        for (before, after), level in levels.items()
    }


def _order(entries: list, opened: list[int]) -> list[str]:
    """Operations that are not complete, as issued."""
    return list(
        dict.fromkeys(
            f"{_short(e['process_group'][0])}:{'p2p' if _is_p2p(e) else e['collective_seq_id']}"
            for e in (entries[at] for at in opened)
        )
    )


def _last(entry: dict) -> Op:
    return _op(
        entry,
        _number(entry["collective_seq_id"]),
        _short(clipped(entry["profiling_name"].rpartition(":")[2], 80)),
        "c" if entry["state"] == "completed" else "o",
    )


def _step_name(group: tuple, name: str) -> str:
    """What a step is called for every rank: groups of one purpose (such as "tp") count as one, and
    so do peers equally far away."""
    desc, peer = _short(group[1]), _P2P.search(name)
    name = (
        f"{peer.group(1)}{int(peer.group(3)) - int(peer.group(2)):+d}"
        if peer
        else name.rpartition(":")[2].strip("_")
    )
    return f"{desc if desc not in ('', 'undefined') else _short(group[0])} {name.partition(' ')[0][:80]}"


def _hash(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "replace"))


def _is_p2p(entry: dict) -> bool:
    return bool(entry["is_p2p"] or _P2P.search(entry["profiling_name"]))
