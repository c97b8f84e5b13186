"""What the last operations of a rank show: which follows which, when each ended, which are open."""

import collections
import operator
import re
import zlib

from nccl_runbook.core.facts import grouped
from nccl_runbook.hang.dumps.operations import field_text, number_of, short
from nccl_runbook.hang.facts import needs_all

HISTORY = 2000  # entries in which a rank's habits are looked for
TAIL = 64  # the last ones, which may break them
ISSUED = "issued "  # prefix of an operation of which only the name is known
RECENT, LEAST = 200, 16  # operations over which the time in them is taken
P2P = re.compile(r"(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})")


def waiting_share(entries: list) -> tuple[float, float] | None:
    """(share of time in this rank's last operations, as torch saw them end; ms from one to the next); None
    for too few operations, or without times."""
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


def ends_of(entries: list, members: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, int]]:
    """Ends by the name that all members use for an operation. One name may be used by several groups, so
    members are part of the key."""
    last = [e for e in entries[-TAIL:] if not _is_p2p(e)]
    done = [(e, e["time_discovered_completed_ns"]) for e in last if e["time_discovered_completed_ns"]]
    names = {name: f"{name} {zlib.crc32(repr(ranks).encode())}" for name, (_, ranks) in members.items()}
    # the time of what its thread issued next: with Gloo, which blocks, it had ended by then
    threads = grouped((field_text(entry, "thread_id"), entry) for entry in last).values()
    next_issued = [(e, after["time_created_ns"]) for rows in threads for e, after in zip(rows, rows[1:])]
    rows, what = (done, "") if done else (next_issued, ISSUED)
    ends = {}
    for e, at in rows:
        if needs_all(e["profiling_name"].split(":", 1)[-1].strip("_")):
            group = short(e["process_group"][0])
            key = f"{what}{names.get(group, group)}:{e['collective_seq_id']}"
            ends[key] = (number_of(e["time_created_ns"]), number_of(at))
    return ends


def steps_of(entries: list, opened: list[int]) -> dict[int, tuple[int, int, tuple[str, ...]]]:
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


def order_of(entries: list, opened: list[int]) -> list[str]:
    """Operations that are not complete, as issued."""
    return list(
        dict.fromkeys(
            f"{short(e['process_group'][0])}:{'p2p' if _is_p2p(e) else e['collective_seq_id']}"
            for e in (entries[at] for at in opened)
        )
    )


def _step_name(group: tuple, name: str) -> str:
    """What a step is called for every rank: groups of one purpose (such as "tp") count as one, and
    so do peers equally far away."""
    desc, peer = short(group[1]), P2P.search(name)
    name = (
        f"{peer.group(1)}{int(peer.group(3)) - int(peer.group(2)):+d}"
        if peer
        else name.split(":", 1)[-1].strip("_")
    )
    return f"{desc if desc not in ('', 'undefined') else short(group[0])} {name.partition(' ')[0][:80]}"


def _hash(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "replace"))


def _is_p2p(entry: dict) -> bool:
    return bool(entry["is_p2p"] or P2P.search(entry["profiling_name"]))
