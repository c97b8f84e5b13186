"""Operations of a dump: their numbers, names and frames, and the columns of one group."""

import array
import dataclasses
import json
import math
import os
import re
from typing import Any

from nccl_runbook.core.redact import clipped
from nccl_runbook.hang.facts import Op

MAX_RANKS = 1 << 17
STATES = {"c": "completed", "s": "started", "o": "scheduled", "t": "timed-out", "r": "returned"}


class Refused(Exception):
    """The file is no usable dump; the message says why."""


@dataclasses.dataclass
class Column:
    """One group on one rank. ``calls`` (hashes) and ``states`` (letters) of the numbers from ``first`` on;
    ``opened``, ``last``: by this rank's clock; ``done``: last complete number in the dump's own table of
    groups, 0 if missing: a dump of active operations (`onlyActive`, torch 2.5) holds no complete entry."""

    desc: str
    first: int
    calls: array.array
    states: bytes
    opened: Op | None
    last: Op
    done: int = 0

    def reached(self) -> tuple[int, int]:
        """(last number issued, last number before any open one)."""
        return self.last.seq, self.opened.seq - 1 if self.opened else self.last.seq


def short(value: Any) -> str:
    """A name, cut for a page or a terminal; empty for anything but text (a value that contains itself is
    endless as text)."""
    return (
        "".join(c if c.isprintable() else "?" for c in clipped(str(value), 200))
        if isinstance(value, (str, int, float))
        else ""
    )


def number_of(value: Any) -> int:
    """The number; OverflowError if no clock and no counter of a recorder can hold it."""
    return int.from_bytes(int(value or 0).to_bytes(8, "big", signed=True), "big", signed=True)


def ranks_of(value: Any) -> tuple[int, ...]:
    """Members of a group, from "[0, 1]" or a list; never evaluated. Refused for anything but numbers."""
    ranks = json.loads(value) if isinstance(value, str) and len(value) < 16 * MAX_RANKS else value
    if (
        not isinstance(ranks, list)
        or len(ranks) > MAX_RANKS
        or not all(type(r) is int and 0 <= r < 1 << 24 for r in ranks)
    ):
        raise Refused(
            "the dump's table of groups contains ranks that are not numbers, so the table was not used"
        )
    return tuple(sorted(set(ranks)))


def numel(sizes: list) -> int:
    """Number of elements of a tensor of these sizes. ValueError for too many dimensions or sizes that are no
    numbers."""
    if len(sizes) > 64:
        raise ValueError(f"a tensor of {len(sizes)} dimensions")
    return math.prod(map(int, sizes))


def op_of(entry: dict, seq: int, call: str, letter: str) -> Op:
    """An entry as a fact, with the frame of the user's code; its age is set later."""
    return Op(
        seq,
        call,
        STATES[letter],
        number_of(entry["timeout_ms"]),
        own_frame(entry["frames"]),
        created_ns=number_of(entry["time_created_ns"]),
    )


def own_frame(frames: Any) -> str:
    """ "step, train.py:40": the innermost frame outside torch and installed packages; empty if there is
    none."""
    rows = [f for f in frames if isinstance(f, dict)][:64] if isinstance(frames, list) else []
    own = [
        f
        for f in rows
        if not re.search(r"/(?:site|dist)-packages/|/lib/python3|^<|/torch/", field_text(f, "filename"))
    ] or rows
    if not own:
        return ""
    name, file, line = (field_text(own[0], key) for key in ("name", "filename", "line"))
    return short(f"{clipped(name, 80)}, {clipped(os.path.basename(file), 80)}:{line[:8]}")


def field_text(frame: dict, key: str) -> str:
    """A field of a frame or an entry as text; empty for anything but text and numbers."""
    value = frame.get(key)
    return str(value) if isinstance(value, (str, int)) else ""
