"""One flight-recorder dump, pickle or JSON, read without executing anything, and made small: columns instead of entries.

Formats read in PyTorch's sources: 1.1 (torch 2.2: `seq_id`, `pg_id`, no members), 1.4 (2.3), 2.2 to 2.10 (2.4 to 2.13); dumps of 2.11 with
NCCL and of 2.13 with Gloo seen. An operation inside a coalesced group has no events of its own: its state is that of the group's last entry,
`coalesced`. Retired without being completed means timed out with NCCL (NCCLUtils.hpp, 2.5); Gloo retires everything that returns.
"""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import gc
import hashlib
import io
import json
import marshal
import operator
import os
import pickle
import re
import zlib
from collections.abc import Iterator
from typing import Any

MAX_BYTES = 256 << 20
MAX_RANKS = 1 << 17
SPARE_BYTES = 96 << 20  # what loading may take beyond OBJECT_FACTOR times the file
OBJECT_FACTOR = 24  # 1.5 kB an entry as objects, measured against 115 to 230 bytes in a pickle (torch 2.13, CPython 3.11)
HISTORY = 4000  # entries in which a rank's habits are looked for
TAIL = 64
RECENT, LEAST = 200, 16  # operations over which the time in them is taken
_BROKEN = (pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, ImportError,
           RecursionError)
_P2P = re.compile(r"(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})")
# numbers of elements that must be the same on every rank; other operations are compared by name only (all_to_all, gather, scatter, ...)
_SAME_IN = ("all_reduce", "allreduce", "broadcast", "reduce", "reduce_scatter")
_SAME_OUT = ("all_gather", "allgather")
# no member completes these before each has issued them; a broadcast's root may
_NEEDS_ALL = ("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "all_to_all", "alltoall", "barrier")
_FIELDS = ("process_group", "collective_seq_id", "profiling_name", "state", "retired", "time_created_ns", "time_discovered_completed_ns",
           "input_sizes", "output_sizes", "input_dtypes", "is_p2p", "p2p_seq_id")
_EMPTY = {"collective_seq_id": 0, "time_discovered_completed_ns": None, "input_dtypes": [], "is_p2p": False, "p2p_seq_id": 0,
          "retired": False, "input_sizes": [], "output_sizes": [], "time_created_ns": 0}
STATES = {"c": "completed", "s": "started", "o": "scheduled", "t": "timed-out", "r": "returned"}


class Refused(ValueError):
    """A file that is no usable dump; one sentence."""


@dataclasses.dataclass
class Column:
    """One group on one rank: calls (hashes) and states (letters) of the numbers from ``first`` on."""

    desc: str
    first: int
    calls: array.array
    states: bytearray
    opened: tuple | None = None  # (seq, call, state, timeout, frame, created)
    last: tuple | None = None


@dataclasses.dataclass
class Reading:
    """A whole dump, small. ``members``: group -> (description, ranks); ``sides``: (group, src, dst, is send) -> (open ones, the first)."""

    version: str
    gloo: bool
    entries: int
    wrapped: bool
    newest_ns: int
    members: dict[str, tuple[str, tuple[int, ...]]]
    columns: dict[str, Column]
    calls: dict[int, str]
    sides: dict[tuple[str, int, int, bool], tuple[int, tuple]]
    steps: dict[int, tuple[int, int]]
    order: list[str]
    last: tuple | None
    waiting: tuple[float, float] | None
    digest: bytes


class _PlainUnpickler(pickle.Unpickler):
    """Values only: real dumps hold no global at all, so whatever asks for one is no dump."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError("it asks for code, which no dump does; nothing was executed")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it asks for an object outside, which no dump does")


@contextlib.contextmanager
def _bounded(size: int) -> Iterator[None]:
    """No more memory than a dump of ``size`` bytes can need: a few bytes can ask the unpickler for gigabytes. Linux; elsewhere unbounded."""
    try:
        import resource

        with open("/proc/self/statm", "rb") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = now + SPARE_BYTES + OBJECT_FACTOR * size
    lower = wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)
    resource.setrlimit(resource.RLIMIT_AS, (lower, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def looks_like_dump(head: bytes) -> bool:
    """Whether a file that begins so may be a dump: a pickle, or JSON."""
    return head.startswith(b"\x80") or head.lstrip()[:1] in (b"{", b"[")


def decode(data: bytes) -> Any:
    """The plain value in ``data``; Refused where it is damaged, hostile or too large."""
    if len(data) > MAX_BYTES:
        raise Refused(f"is larger than {MAX_BYTES >> 20} MiB")
    try:
        with _bounded(len(data)):
            return _PlainUnpickler(io.BytesIO(data)).load() if data.startswith(b"\x80") else json.loads(data)
    except MemoryError:
        raise Refused("asks for far more memory than a dump of its size holds") from None
    except _BROKEN as error:
        raise Refused(f"is damaged or no dump: {str(error)[:160]}") from None


def read(data: bytes) -> Reading:
    """One dump; Refused with a sentence where it is none."""
    collecting = gc.isenabled()
    gc.disable()  # it would look through millions of live objects again and again
    try:
        value = decode(data)
        return _reading({"entries": value} if isinstance(value, list) else value, hashlib.blake2b(data, digest_size=16).digest())
    except Refused:
        raise
    except _BROKEN as error:
        raise Refused(f"is no dump that can be understood: {type(error).__name__} {str(error)[:120]}") from None
    finally:
        if collecting:
            gc.enable()


def _reading(dump: Any, digest: bytes) -> Reading:
    if not isinstance(dump, dict) or not isinstance(dump.get("entries", [] if "pg_config" in dump else None), list):
        raise Refused("is no recorder dump: it has no entries")
    entries = dump.get("entries", [])
    members = {_name(k): (str(v.get("desc", ""))[:200], ranks_of(v["ranks"])) for k, v in (dump.get("pg_config") or {}).items()}
    columns, loose, calls = _Table(entries).columns()
    gloo = any("gloo" in str(e["profiling_name"])[:8] for e in entries[-1:])
    table = _Steps(entries, columns, calls, gloo)
    return Reading(
        str(dump.get("version", ""))[:20], gloo, len(entries), bool(entries) and int(entries[0].get("record_id", 0) or 0) > 0 and any(c.first > 1 for c in columns.values()),
        max((int(e["time_created_ns"]) for e in entries[-TAIL:]), default=0), members, columns, calls, _sides(entries, loose),
        table.steps(), table.order(), table.last(), _waiting(entries), digest)


def _name(value: Any) -> str:
    return str(value)[:200]


def ranks_of(value: Any) -> tuple[int, ...]:
    """The members of a group, "[0, 1]" or a list; numbers and nothing else, never evaluated."""
    ranks = json.loads(value) if isinstance(value, str) and len(value) < 16 * MAX_RANKS else value
    if not isinstance(ranks, list) or len(ranks) > MAX_RANKS or not all(type(r) is int and 0 <= r < 1 << 24 for r in ranks):
        raise Refused("its table of groups names ranks that are no numbers; it was not used")
    return tuple(sorted(set(ranks)))


class _Table:
    """Entries sorted into a column for each group, and those that go from point to point."""

    def __init__(self, entries: list) -> None:
        first = entries[0] if entries else {}
        self._keys = {"collective_seq_id": "seq_id"} if "collective_seq_id" not in first else {}
        self._keys.update({"process_group": "pg_id"} if "process_group" not in first else {})
        missing = {k: v for k, v in _EMPTY.items() if self._keys.get(k, k) not in first}
        self._entries = [{**missing, **e} for e in entries] if missing else entries

    def columns(self) -> tuple[dict[str, Column], list[int], dict[int, str]]:
        """Columns by group, indices of point-to-point entries, and the calls by hash."""
        rows = map(operator.itemgetter(*(self._keys.get(f, f) for f in _FIELDS)), self._entries)
        known: dict[bytes, int] = {}
        calls: dict[int, str] = {}
        kept: dict[Any, list] = {}
        loose: list[int] = []
        for at, (group, seq, name, state, retired, created, done, ins, outs, dtypes, p2p, _) in enumerate(rows):
            if p2p or " " in name:
                loose.append(at)
                continue
            key = marshal.dumps((name, ins, outs, dtypes), 2)
            call = known.get(key)
            if call is None:
                call = known[key] = _remember(calls, name, ins, outs, dtypes)
            letter = "c" if state == "completed" or done else _letter(name, state, retired)
            row = kept.get(group) if type(group) is tuple else kept.get(group := _hashable(group))
            if row is None:
                row = kept[group] = []
            row.append((seq, call, letter, at))
        return {_name(g[0] if isinstance(g, tuple) else g): self._column(g, rows) for g, rows in kept.items()}, loose, calls

    def _column(self, group: Any, rows: list) -> Column:
        """The rows of one group. Operations of a coalesced group share its number: the last one stands for it."""
        if any(b[0] != a[0] + 1 for a, b in zip(rows, rows[1:])):
            rows = sorted({row[0]: row for row in rows}.values())
            gap = max((i for i in range(1, len(rows)) if rows[i][0] != rows[i - 1][0] + 1), default=0)
            rows = rows[gap:]  # what lies before a hole cannot be counted on
        seqs, calls, states, ats = zip(*rows)
        column = Column(group[1][:200] if isinstance(group, tuple) else "", seqs[0],
                        array.array("Q", calls), bytearray("".join(states), "ascii"))
        still = next((i for i, letter in enumerate(states) if letter != "c"), None)
        column.opened = None if still is None else (seqs[still], calls[still], states[still], *_where(self._entries[ats[still]]))
        column.last = (seqs[-1], calls[-1], states[-1], *_where(self._entries[ats[-1]]))
        return column


def _hashable(group: Any) -> Any:
    return tuple(group) if isinstance(group, list) else group


def _letter(name: str, state: str, retired: bool) -> str:
    if retired:
        return "c" if name.startswith("gloo:") else "t"
    return "s" if state == "started" else "o"


def _remember(calls: dict[int, str], name: str, ins: list, outs: list, dtypes: list) -> int:
    op = name.rpartition(":")[2].strip("_")[:60]
    plain = op.replace("_oop", "").replace("_coalesced", "")
    sizes = outs if plain.startswith(_SAME_OUT) else ins if plain.startswith(_SAME_IN) else []
    text = f"{op} {sum(map(_numel, sizes))} x {str(dtypes[0])[:20] if dtypes else '?'}" if sizes else op
    number = int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")
    calls[number] = text
    return number


def _numel(sizes: list) -> int:
    count = 1
    for size in sizes:
        count *= int(size)
    return count


def needs_all(call: str) -> bool:
    """Whether nobody completes this before every member has issued it."""
    return call.lstrip("_").startswith(_NEEDS_ALL) or "barrier" in call


def _where(entry: dict) -> tuple[int, str, int]:
    """Time-out in ms, the frame of the user's own code, and the time of creation in ns."""
    return int(entry.get("timeout_ms") or 0), own_frame(entry.get("frames")), int(entry.get("time_created_ns") or 0)


def own_frame(frames: Any) -> str:
    """ "step, train.py:40": the innermost frame that is neither torch's nor installed; "" for none."""
    rows = [f for f in frames if isinstance(f, dict)][:64] if isinstance(frames, list) else []
    own = [f for f in rows if not re.search(r"/(?:site|dist)-packages/|/lib/python3|^<|/torch/", str(f.get("filename", "")))] or rows
    return f"{str(own[0].get('name'))[:80]}, {os.path.basename(str(own[0].get('filename')))[:80]}:{own[0].get('line')}" if own else ""


def _sides(entries: list, loose: list[int]) -> dict[tuple[str, int, int, bool], tuple[int, tuple]]:
    """Open sends and receives by group, ends and direction. One of a batch has the state of the batch's last entry, `coalesced`."""
    ends = {}
    for at in loose:
        entry = entries[at]
        if str(entry["profiling_name"]).endswith("coalesced"):
            ends[str(entry["process_group"]), entry["p2p_seq_id"]] = entry
    sides: dict[tuple[str, int, int, bool], tuple[int, tuple]] = {}
    for at in loose:
        entry = entries[at]
        found = _P2P.search(str(entry["profiling_name"]))
        group = entry.get("process_group", entry.get("pg_id"))
        end = ends.get((str(group), entry.get("p2p_seq_id")), entry)
        if not found or end["state"] == "completed":
            continue
        kind, one, other = found.group(1), int(found.group(2)), int(found.group(3))
        src, dst = (one, other) if kind == "send" else (other, one)
        key = (_name(group[0] if isinstance(group, (list, tuple)) else group), src, dst, kind == "send")
        number, first = sides.get(key, (0, (int(entry.get("p2p_seq_id") or 0), found.group(0), "o", *_where(entry))))
        sides[key] = (number + 1, first)
    return sides


def _waiting(entries: list) -> tuple[float, float] | None:
    """The share of time that this rank's last operations were under way, as torch saw them end, and ms from one to the next; None for too
    few, or where nothing tells."""
    rows = sorted((e["time_created_ns"], e["time_discovered_completed_ns"]) for e in entries[-RECENT:] if e.get("time_discovered_completed_ns"))
    if len(rows) < LEAST or rows[-1][1] <= rows[0][0]:
        return None
    busy, until = 0, 0
    for created, done in rows:
        busy, until = busy + max(0, done - max(created, until)), max(until, done)
    return round(min(1.0, busy / (until - rows[0][0])), 3), round((until - rows[0][0]) / 1e6 / len(rows), 3)


class _Steps:
    """The order in which this rank issued its last operations, against what it did before."""

    def __init__(self, entries: list, columns: dict[str, Column], calls: dict[int, str], gloo: bool) -> None:
        self._recent = entries[-HISTORY:]
        self._gloo, self._columns = gloo, columns
        if gloo and entries:  # a time-out returns, too: of the very last one nobody can tell
            column = columns.get(_group_of(entries[-1]))
            if column is not None and column.states[-1:] == b"c":
                column.states[-1:] = b"r"
                column.last = (*column.last[:2], "r", *column.last[3:])
                column.opened = column.opened or column.last

    def _open_from(self) -> int:
        """Index of the first operation that is not complete; of the last one where all are."""
        first = {g: c.opened[0] for g, c in self._columns.items() if c.opened}
        for at, entry in enumerate(self._recent):
            if _is_p2p(entry):
                if entry["state"] != "completed" and not entry.get("retired"):
                    return at
            elif _seq_of(entry) >= first.get(_group_of(entry), 1 << 62):
                return at
        return max(0, len(self._recent) - 1)

    def steps(self) -> dict[int, tuple[int, int]]:
        """Which operation follows which, up to the first that is not complete, hashed: (how new, hash of the predecessor). 0: taken before
        the last ones; 1: among the last ones only; 2: the same, and the predecessor had been followed by others twice or more."""
        names = [f"{_kind_of(e)} {str(e['profiling_name']).partition(' ')[0]}" for e in self._recent[: self._open_from() + 1]]
        found: dict[tuple[str, str], int] = {}
        followed: collections.Counter[str] = collections.Counter()
        for at, (one, other) in enumerate(zip(names, names[1:]), 1):
            if (one, other) not in found:
                found[one, other] = 0 if at < len(names) - TAIL else 2 if followed[one] >= 2 else 1
            followed[one] += 1
        return {_hash(f"{one}>{other}"): (level, _hash(one)) for (one, other), level in found.items()}

    def order(self) -> list[str]:
        """Operations that are not complete, as issued."""
        rows = []
        for entry in self._recent[self._open_from():]:
            column, seq, loose = self._columns.get(_group_of(entry)), _seq_of(entry), _is_p2p(entry)
            if entry["state"] != "completed" and (loose or column and column.opened and seq >= column.opened[0]):
                rows.append(f"{_group_of(entry)}:{'p2p' if loose else seq}")
        return list(dict.fromkeys(rows))[:TAIL]

    def last(self) -> tuple | None:
        if not self._recent:
            return None
        entry = self._recent[-1]
        name = str(entry["profiling_name"]).rpartition(":")[2][:80]
        return (_seq_of(entry), name, "c" if entry["state"] == "completed" else "o", *_where(entry))


def _hash(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "replace"))


def _kind_of(entry: dict) -> str:
    """What groups of one purpose have in common, such as "tp"; the name where they have no description."""
    group = entry.get("process_group")
    return _name(group[1] if isinstance(group, (list, tuple)) and group[1] not in ("", "undefined") else _group_of(entry))


def _group_of(entry: dict) -> str:
    group = entry.get("process_group", entry.get("pg_id"))
    return _name(group[0] if isinstance(group, (list, tuple)) else group)


def _is_p2p(entry: dict) -> bool:
    return bool(entry.get("is_p2p")) or " " in str(entry["profiling_name"])


def _seq_of(entry: dict) -> int:
    return int(entry.get("collective_seq_id", entry.get("seq_id", 0)) or 0)
