"""Python stacks that somebody saved: `py-spy dump`, faulthandler, live looks.
Text and JSON only; nothing is executed."""

import contextlib
import os
import re
from collections.abc import Iterable
from typing import Any

from nccl_runbook.core.facts import known
from nccl_runbook.core.redact import clipped
from nccl_runbook.hang.facts import Stack
from nccl_runbook.hang.live.facts import Live
from nccl_runbook.logs.text import rank_of_name

MOST_FRAMES = 60
_PYSPY_HEAD = re.compile(r"^Process (\d{1,8}): (.{0,400})$", re.M)
# py-spy 0.4
_PYSPY_THREAD = re.compile(r'^Thread (?:0x[0-9A-F]+|\d+) \(([\w+ ]{1,30})\)(?:: "([^"\n]{0,80})")?$', re.M)
_PYSPY_FRAME = re.compile(r"^ {4}(\S.{0,120}?) \((.{1,400}?):(\d{1,7})\)$")
_FAULT_THREAD = re.compile(r"^(?:Current t|T)hread 0x[0-9a-f]+ .{0,60}\(most recent call first\):$", re.M)
_FAULT_FRAME = re.compile(r'^  File "(.{1,400})", line (\d{1,7}) in (.{1,120})$')
_RANK = re.compile(r"\bRANK[= ](\d{1,6})\b|^# ?rank[ =:](\d{1,6})\b", re.M | re.I)


def looks_like_stacks(text: str) -> bool:
    """Whether the text is only stacks: a log that ends in one is a log."""
    return bool(_PYSPY_HEAD.match(text.lstrip()) or _FAULT_THREAD.match(text.lstrip()))


def read(name: str, text: str) -> Stack | None:
    """Main thread of the process, with the rank from the file's name or the process's output; None if the
    rank is unknown."""
    printed = _RANK.search(text[:4000])
    rank = int(printed[1] or printed[2]) if printed else rank_of_name(os.path.basename(name))
    threads = (
        _pyspy(text)
        if _PYSPY_HEAD.search(text)
        else [  # faulthandler writes the main thread last (CPython 3.9 to 3.13)
            ("", _frames(_FAULT_FRAME, part, "{0[3]}, {0[1]}:{0[2]}"))
            for part in _FAULT_THREAD.split(text)[1:]
        ]
    )
    if rank is None or not threads:
        return None
    state, frames = next((t for t in threads if t[0].startswith("main")), threads[-1])
    return Stack(rank, name, frames[:MOST_FRAMES], state.removeprefix("main").strip())


def _pyspy(text: str) -> list[tuple[str, list[str]]]:
    cuts = list(_PYSPY_THREAD.finditer(text))
    ends = [*(c.start() for c in cuts[1:]), len(text)]
    return [
        (
            f"{'main ' if cut[2] == 'MainThread' else ''}{cut[1]}",
            _frames(_PYSPY_FRAME, text[cut.end() : end], "{0[1]}, {0[2]}:{0[3]}"),
        )
        for cut, end in zip(cuts, ends)
    ]


def _frames(pattern: re.Pattern[str], text: str, form: str) -> list[str]:
    return [form.format(match) for match in map(pattern.match, text.splitlines()) if match]


def looks_in(value: Any, depth: int = 0) -> list[dict]:
    """Live looks anywhere in a record: objects with ranks that have samples."""
    if isinstance(value, dict):
        ranks = value.get("ranks")
        if isinstance(ranks, list) and any(isinstance(r, dict) and "samples" in r for r in ranks):
            return [value]
        value = list(value.values())
    return (
        [look for v in value for look in looks_in(v, depth + 1)]
        if isinstance(value, list) and depth < 6
        else []
    )


def whole_looks(looks: Iterable[Any]) -> list[Live]:
    """Looks in which every sample has its threads, every GPU its figures, and times are seconds, as ours
    write them."""
    from nccl_runbook.core.records import RecordError, read

    whole = []
    for value in looks:
        with contextlib.suppress(RecordError):
            look = read(Live, value)
            if (
                all(s.threads for rank in look.ranks for s in rank.samples)
                and 0 <= look.first_s < 1e7 > look.gap_s >= 0
                and all(
                    g.utilisation_percent and g.power_w
                    for g in (look.gpus if isinstance(look.gpus, list) else [])
                )
            ):
                whole.append(look)
    return whole


def stacks_of(name: str, looks: Iterable[Live]) -> list[Stack]:
    """Main thread of each rank in its last sample, if the look has it."""
    return [
        Stack(
            rank.rank,
            name,
            [
                clipped(f"{f.function}, {f.file}:{f.line}", 300)
                for stack in known(sample.stacks)[:1]
                for f in stack.frames[:MOST_FRAMES]
            ],
            sample.threads[0].state[:4],
        )
        for look in looks
        for rank in look.ranks
        if rank.rank is not None
        for sample in rank.samples[-1:]
    ]
