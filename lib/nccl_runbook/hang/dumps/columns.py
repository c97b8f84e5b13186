"""A decoded dump made small: columns instead of entries, and what its last operations tell.

Formats read in PyTorch's sources: 1.1 (torch 2.2: `seq_id`, `pg_id`, no members), 1.4 (2.3), 2.2 to 2.10
(2.4 to 2.15); dumps of 2.11 with NCCL and of 2.13 with Gloo seen. An operation inside a coalesced group
has no events of its own: its state is that of the group's last entry, `coalesced`. Retired without being
completed means timed out with NCCL (NCCLUtils.hpp, 2.5); Gloo retires everything that returns, and records
no send and no recv (2.13, seen).
"""

import array
import dataclasses
import hashlib
import marshal
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from nccl_runbook.core.redact import clipped
from nccl_runbook.hang.dumps.agreement import alike
from nccl_runbook.hang.dumps.last_steps import P2P, RECENT, TAIL, ends_of, order_of, steps_of, waiting_share
from nccl_runbook.hang.dumps.operations import Column, Refused, number_of, numel, op_of, ranks_of, short
from nccl_runbook.hang.facts import Op, needs_all

# numbers of elements that must be the same on every rank; other operations are compared by name only
# (all_to_all, gather, scatter, ...)
_SAME_IN = ("all_reduce", "allreduce", "broadcast", "reduce", "reduce_scatter")


@dataclasses.dataclass
class Reading:
    """A whole dump, condensed. A field that ``Dump`` has, too, arrives there. ``members``: group ->
    (description, ranks); ``sides``: (group, src, dst, is send) -> (number open, the first); ``steps``: see
    steps_of; ``order``: open operations, as issued; ``waiting``: share of recent time spent in operations,
    ``pace_ms``: ms between them; ``ends``: when recent operations were issued and ended, in ns of this rank's
    clock (if no end is recorded, when the next was issued); ``oldest_ns``, ``newest_ns``: issue times of the
    first and last entry; ``until_ns``: when the last one was issued or ended; ``status``: see take_status;
    ``timed``: whether GPU start times are recorded (TORCH_NCCL_ENABLE_TIMING)."""

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
    waiting: float | None
    pace_ms: float | None
    ends: dict[str, tuple[int, int]]
    status: dict[str, tuple[int, int]]
    timed: bool
    digest: bytes

    def joined(self, column: Column) -> int:
        """Number of the last complete operation that no member finishes alone (0 for none): every member has
        issued it."""
        return next(
            (
                column.first + i
                for i in range(len(column.states) - 1, -1, -1)
                if column.states[i] == 99 and needs_all(self.calls[column.calls[i]])
            ),
            0,
        )


def condense(dump: Any, digest: bytes) -> Reading:
    """The dump, condensed. Refused, or an error of lookup or type, if it does not look like a dump."""
    if not isinstance(dump, dict) or not isinstance(
        dump.get("entries", [] if "pg_config" in dump else None), list
    ):
        raise Refused("is not a flight-recorder dump, because it has no entries")
    entries = alike(dump.get("entries", []))
    members = {
        short(k): (short(v.get("desc", "")), ranks_of(v["ranks"]))
        for k, v in (dump.get("pg_config") or {}).items()
    }
    table = _Table(entries)
    opened = sorted(table.open_ats)[:TAIL]
    last = [number_of(e["time_created_ns"]) for e in entries[-TAIL:]]
    return Reading(
        table.gloo,
        len(entries),
        bool(entries)
        and int(entries[0].get("record_id") or 0) > 0
        and any(c.first > 1 for c in table.columns.values()),
        number_of(entries[0]["time_created_ns"]) if entries else 0,
        max(last, default=0),
        max([*last, *(number_of(e["time_discovered_completed_ns"]) for e in entries[-TAIL:])], default=0),
        members,
        table.columns,
        table.calls,
        table.sides,
        steps_of(entries, opened),
        order_of(entries, opened),
        _last(entries[-1]) if entries else None,
        *(waiting_share(entries) or (None, None)),
        ends_of(entries, members),
        table.take_status(dump.get("pg_status"), members),
        any(e.get("time_discovered_started_ns") for e in entries[-RECENT:]),
        digest,
    )


@dataclasses.dataclass(eq=False)
class _Table:
    """Entries sorted into a column for each group, and the open ones that go from point to point."""

    _entries: list
    calls: dict[int, str] = dataclasses.field(default_factory=dict)
    open_ats: list[int] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        entries = self._entries
        self.gloo = bool(entries) and entries[-1]["profiling_name"].startswith("gloo:")
        marks = list(map(operator.itemgetter("profiling_name", "is_p2p"), entries))
        alone = {mark for mark in set(marks) if mark[1] or P2P.search(mark[0])}
        kept = self._sorted(
            [at for at, mark in enumerate(marks) if mark not in alone] if alone else range(len(entries))
        )
        self.columns = {short(group[0]): self._column(group, rows) for group, rows in kept.items()}
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
        ):  # a timeout also returns: of the last operation it cannot be distinguished
            last = kept[self._entries[-1]["process_group"]]
            last[-1] = (*last[-1][:2], "r" if last[-1][2] == "c" else last[-1][2], last[-1][3])
        return kept

    def _remember(self, entry: dict, kept: dict[tuple, list]) -> tuple[list, int, str]:
        """The place of an entry, the number of its call, and the letter of its state."""
        name, state = entry["profiling_name"], entry["state"]
        op = short(clipped(name.split(":", 1)[-1].strip("_"), 60))
        sizes = (
            entry["output_sizes"]
            if op.startswith(("all_gather", "allgather"))
            else entry["input_sizes"]
            if op.startswith(_SAME_IN)
            else []
        )
        dtypes = entry["input_dtypes"]
        if op in ("all_reduce", "allreduce", "broadcast") and entry["input_sizes"] != entry["output_sizes"]:
            raise Refused(f"is damaged, because {op} has different input and output sizes")
        text = f"{op} {sum(map(numel, sizes))} x {short(dtypes[0])[:20] if dtypes else '?'}" if sizes else op
        number = int.from_bytes(
            hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big"
        )
        self.calls[number] = text
        # other backends retire what returns, or through the hook of torch 2.15 what
        # is issued (FlightRecorderHook.cpp)
        if (
            state == "completed"
            or entry["time_discovered_completed_ns"]
            or (entry["retired"] and not name.startswith(("nccl:", "xccl:")))
        ):
            letter = "c"
        else:
            letter = "t" if entry["retired"] else "s" if state == "started" else "o"
        return kept.setdefault(entry["process_group"], []), number, letter

    def _column(self, group: tuple, rows: list) -> Column:
        """The rows of one group. Operations of a coalesced group share its number; the last one is kept."""
        seqs, calls, states, ats = zip(*rows)
        number_of(seqs[0]), number_of(seqs[-1])
        if seqs != tuple(range(seqs[0], seqs[0] + len(seqs))):
            rows = sorted({row[0]: row for row in rows}.values())
            gap = max((i for i in range(1, len(rows)) if rows[i][0] != rows[i - 1][0] + 1), default=0)
            seqs, calls, states, ats = zip(*rows[gap:])  # entries before a hole are not reliable
        still = [i for i, letter in enumerate(states) if letter != "c"]
        self.open_ats += [ats[i] for i in still]
        opened, last = (
            None if i is None else op_of(self._entries[ats[i]], seqs[i], self.calls[calls[i]], states[i])
            for i in (still[0] if still else None, -1)
        )
        return Column(
            short(group[1]),
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
            short(group[0]): str(e.get("pg_id"))
            for group, e in {e["process_group"]: e for e in self._entries}.items()
        }
        known = [name for name in names if name.isdecimal()]
        in_order = dict(zip(sorted(known, key=int), sorted(rows, key=int))) if len(known) == len(rows) else {}
        in_order = in_order if all(in_order.get(name) == number for name, number in ids.items()) else {}
        counts = {
            name: tuple(
                max(0, number_of(rows[n].get(f"last_{word}_collective")))
                for word in ("enqueued", "completed")
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
            match = P2P.search(entry["profiling_name"])
            end = ends.get((entry["process_group"], entry["p2p_seq_id"]), entry)
            if not match or end["state"] == "completed" or end["time_discovered_completed_ns"]:
                continue
            self.open_ats.append(at)
            sends, here, there = match[1] == "send", int(match[2]), int(match[3])
            key = (
                short(entry["process_group"][0]),
                here if sends else there,
                there if sends else here,
                sends,
            )
            number, first = sides.get(key, (0, op_of(entry, number_of(entry["p2p_seq_id"]), match[0], "o")))
            sides[key] = (number + 1, first)
        return sides


# --- the order in which this rank issued its last operations, against what it did before


def _last(entry: dict) -> Op:
    return op_of(
        entry,
        number_of(entry["collective_seq_id"]),
        short(clipped(entry["profiling_name"].split(":", 1)[-1], 80)),
        "c" if entry["state"] == "completed" else "o",
    )
