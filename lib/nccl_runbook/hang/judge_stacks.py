"""Saved stacks of Python: in which frame a rank is, and whether it waits in a collective."""

import collections
import dataclasses
import pathlib
import re
import sys
from collections.abc import Sequence

from nccl_runbook.core.facts import counted, grouped
from nccl_runbook.core.findings import Evidence
from nccl_runbook.hang.facts import Hang, Stack as SavedStack
from nccl_runbook.hang.live.facts import Frame, Stack
from nccl_runbook.hang.live.faults.judge_missing import never_came
from nccl_runbook.hang.live.judge_ranks import HOST_WORK
from nccl_runbook.hang.live.ranks.judge_picture import Picture, RankView
from nccl_runbook.hang.live.ranks.judge_stacks import DISTRIBUTED, frame_words, own_frame, waits_in, words_of


def frame_of(hang: Hang, rank: int) -> str:
    """Where a rank is, by its stack, else by its last operation; empty without either."""
    stack = next((s for s in hang.stacks if s.rank == rank and s.frames), None)
    return (
        top_of(stack) if stack else next((d.last.frame for d in hang.dumps if d.rank == rank and d.last), "")
    )


# py-spy 0.4 prints the path below the folder that is no package: "selectors.py", "torch/serialization.py"
_PACKAGES = frozenset(("torch", "numpy", "asyncio", "concurrent", "importlib", "multiprocessing"))
# it waits for its own thread or data loader, which may be in the collective
_WAITS_FOR_ITS_OWN = re.compile(r"/(?:threading|queue)\.py$|/concurrent/futures/|/torch/utils/data/")
_AGAIN = (
    "py-spy dump --pid PID   # of every rank, twice, ten seconds apart, into two folders. Name both folders"
)


def frames_of(stack: SavedStack) -> Stack:
    """The stack with each frame split, and installed packages marked by their folder."""
    cut = [
        (function, *place.rpartition(":")[::2])
        for function, _, place in (text.partition(", ") for text in stack.frames)
    ]
    return Stack(
        0,
        "",
        "idle" not in stack.state,
        "gil" in stack.state,
        [
            Frame(
                function,
                f"/site-packages/{file}" if _is_installed(file) else file,
                int(line) if line.isdecimal() else 0,
            )
            for function, file, line in cut
        ],
    )


def _is_installed(file: str) -> bool:
    """Also frames of native code, which `py-spy dump --native` shows with their source files."""
    if pathlib.PurePosixPath(file).suffix not in ("", ".py"):
        return True
    top, _, below = file.partition("/")
    return top in _PACKAGES if below else top.removesuffix(".py") in sys.stdlib_module_names


def top_of(stack: SavedStack) -> str:
    """The innermost frame of the job's own code, without its folder."""
    frame = own_frame(frames_of(stack))
    return frame_words(frame) if frame else ""


def frames_shown(stack: SavedStack, most: int) -> str:
    """The innermost frames in one line, at most ``most``."""
    return " < ".join(map(frame_words, frames_of(stack).frames[:most]))


def seen_in(stack: SavedStack) -> Evidence:
    """The top of a stack, as evidence."""
    return Evidence(
        f"rank {stack.rank}: {stack.state + ' ' if stack.state else ''}{frames_shown(stack, 3)}".strip(),
        stack.source,
    )


def is_elsewhere(stack: Stack) -> bool:
    """Whether the rank is in no call of torch.distributed, and waits neither for its GPU nor for its threads
    or data loader."""
    return (
        bool(stack.frames)
        and not waits_in(stack)
        and not any(_WAITS_FOR_ITS_OWN.search(f.file) for f in stack.frames)
    )


def pictures(stacks: Sequence[SavedStack]) -> list[Picture]:
    """One picture of the ranks with saved stacks, from one or several rounds; empty without stacks."""
    rounds = grouped((s.rank, frames_of(s)) for s in stacks if s.frames)
    views = {rank: _view(rank, samples[-1]) for rank, samples in rounds.items()}
    still = {
        rank: len(samples) > 1
        for rank, samples in rounds.items()
        if len({(own_frame(s), waits_in(s)) for s in samples}) == 1
    }
    calls = grouped((views[rank].where, views[rank]) for rank in still if _is_in_collective(rounds[rank]))
    waiters = max(calls.values(), key=len, default=[])
    late = [v for rank, v in views.items() if all(map(is_elsewhere, rounds[rank]))]
    if waiters and 0 < len(late) <= max(1, len(waiters) - 1):
        sure = all(still.get(v.rank) for v in late) and any(still[v.rank] for v in waiters)
        picture = never_came(
            Picture("", "", "", [], [], [*waiters, *late]), late, "likely" if sure else "possible", []
        )
        return [
            dataclasses.replace(
                picture,
                sentence=picture.sentence
                + (". One round of stacks does not show whether the rank still moves" if not sure else ""),
                evidence=[seen_in(s) for v in (*late, *waiters) for s in stacks if s.rank == v.rank],
                decides=f"open {late[0].frame.partition(', ')[2].partition(' ')[0]}" if sure else _AGAIN,
            )
        ]
    shown = collections.Counter(
        f"{v.where or 'no call of torch.distributed'} ({v.frame})" for v in views.values()
    )
    places = "; ".join(f"{counted(n, 'rank')} in {place}" for place, n in shown.most_common(4))
    return (
        [
            Picture(
                "",
                "unknown",
                f"the stacks do not show which rank is late: {places}",
                [],
                [],
                [],
                decides=_AGAIN,
            )
        ]
        if views
        else []
    )


def _view(rank: int, stack: Stack) -> RankView:
    where = waits_in(stack)
    at_work = stack.is_active or any(
        map(HOST_WORK.search, (word for f in stack.frames for word in (f.function, f.file)))
    )
    return RankView(
        rank, "", None, "waits" if where else "busy" if at_work else "asleep", words_of(stack), where
    )


def _is_in_collective(samples: list[Stack]) -> bool:
    """Whether it waits there for all others. Who stays in one wait for its GPU waits for
    a collective that it has issued."""
    where = waits_in(samples[0])
    issued = any(DISTRIBUTED.search(f.file) and f.function == where for f in samples[0].frames)
    return bool(where) and not re.search("send|recv", where) and (issued or len(samples) > 1)
