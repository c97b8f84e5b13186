"""Python stacks that somebody saved: `py-spy dump`, faulthandler, live looks. Text and JSON only; nothing is executed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from typing import Any

from nccl_runbook.hang.facts import Stack
from nccl_runbook.hang.live.facts import Live
from nccl_runbook.logs.text import rank_of_name

MOST_FRAMES = 60
_PYSPY_HEAD = re.compile(r"^Process (\d{1,8}): (.{0,400})$", re.M)
_PYSPY_THREAD = re.compile(r'^Thread (?:0x[0-9A-F]+|\d+) \(([\w+ ]{1,30})\)(?:: "([^"\n]{0,80})")?$', re.M)  # py-spy 0.4
_PYSPY_FRAME = re.compile(r"^ {4}(\S.{0,120}?) \((.{1,400}?):(\d{1,7})\)$")
_FAULT_THREAD = re.compile(r"^(?:Current t|T)hread 0x[0-9a-f]+ .{0,60}\(most recent call first\):$", re.M)
_FAULT_FRAME = re.compile(r'^  File "(.{1,400})", line (\d{1,7}) in (.{1,120})$')
_RANK = re.compile(r"\bRANK[= ](\d{1,6})\b|^# ?rank[ =:](\d{1,6})\b", re.M | re.I)


def looks_like_stacks(text: str) -> bool:
    """Whether the text is nothing but stacks: a log that ends in one is a log."""
    return bool(_PYSPY_HEAD.match(text.lstrip()) or _FAULT_THREAD.match(text.lstrip()))


def read(name: str, text: str) -> Stack | None:
    """The main thread of the process, with the rank from the file's name or the process's words; None where no rank is told."""
    told = _RANK.search(text[:4000])
    rank = rank_of_name(os.path.basename(name)) if not told else int(told.group(1) or told.group(2))
    threads = _pyspy(text) if _PYSPY_HEAD.search(text) else _faulthandler(text)
    if rank is None or not threads:
        return None
    state, frames = next((t for t in threads if t[0].startswith("main")), threads[-1])
    return Stack(rank, name, frames[:MOST_FRAMES], state.removeprefix("main").strip())


def _pyspy(text: str) -> list[tuple[str, list[str]]]:
    cuts = list(_PYSPY_THREAD.finditer(text))
    threads = []
    for cut, following in zip(cuts, [*(c.start() for c in cuts[1:]), len(text)]):
        rows = (_PYSPY_FRAME.match(line) for line in text[cut.end() : following].splitlines())
        frames = [f"{m.group(1)}, {m.group(2)}:{m.group(3)}" for m in rows if m]
        threads.append((f"{'main ' if cut.group(2) == 'MainThread' else ''}{cut.group(1)}", frames))
    return threads


def _faulthandler(text: str) -> list[tuple[str, list[str]]]:
    """faulthandler writes the main thread last (CPython 3.9 to 3.13)."""
    parts = _FAULT_THREAD.split(text)[1:]
    rows = [[_FAULT_FRAME.match(line) for line in part.splitlines()] for part in parts]
    return [("", [f"{m.group(3)}, {m.group(1)}:{m.group(2)}" for m in part if m]) for part in rows]


def looks_in(value: Any, depth: int = 0) -> list[dict]:
    """Live looks anywhere in a record: an object with ranks that have samples."""
    if isinstance(value, dict):
        ranks = value.get("ranks")
        if isinstance(ranks, list) and any(isinstance(r, dict) and "samples" in r for r in ranks):
            return [value]
        value = list(value.values())
    return [look for v in value for look in looks_in(v, depth + 1)] if isinstance(value, list) and depth < 6 else []


def whole_looks(looks: Iterable[Any]) -> list[Live]:
    """Those in which every sample has its threads, every GPU its figures, and times are numbers of seconds, as a look of ours has."""
    from nccl_runbook.core.records import RecordError, read

    found = []
    for look in looks:
        with contextlib.suppress(RecordError):
            found.append(read(Live, look))
    return [one for one in found if all(s.threads for rank in one.ranks for s in rank.samples) and 0 <= one.first_s < 1e7 > one.gap_s >= 0
            and all(g.utilisation_percent and g.power_w for g in (one.gpus if isinstance(one.gpus, list) else []))]


def stacks_of(name: str, looks: Iterable[Live]) -> list[Stack]:
    """The main thread of each rank in its last sample, as far as the look has it."""
    last = [(rank.rank, rank.samples[-1]) for look in looks for rank in look.ranks if rank.rank is not None and rank.samples]
    return [Stack(rank, name, [f"{f.function}, {f.file}:{f.line}"[:300] for f in held[0].frames[:MOST_FRAMES]] if held else [],
                  sample.threads[0].state[:4])
            for rank, sample in last for held in [sample.stacks if isinstance(sample.stacks, list) else []]]
