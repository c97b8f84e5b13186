"""Words for ranks, groups, calls and places of a hung job."""

from __future__ import annotations

import re
from collections import Counter

from nccl_runbook.core.facts import counted
from nccl_runbook.core.findings import Evidence
from nccl_runbook.hang.facts import Hang, Stack, Track
from nccl_runbook.hang.judge_graph import Wait


def places(calls: Counter[str]) -> str:
    """Where ranks wait, with how many of them where there are several places."""
    return ", ".join(call + f" ({counted(n, 'rank')})" * (len(calls) > 1) for call, n in calls.most_common(4))


def called(hang: Hang, wait: Wait) -> str:
    """An operation as a reader knows it: "ALL_REDUCE 7 of group 0 (default_pg)"."""
    name = wait.op.call if wait.p2p else f"{wait.op.call.split(' ')[0].upper()} {wait.op.seq}"
    return f"{name} of {group_name(hang, wait.group)}"


def group_name(hang: Hang, name: str) -> str:
    """With its description, where it has one."""
    desc = next((g.desc for g in hang.groups if g.name == name), "")
    return (f"group {name}" if name else "a group without a name") + (f" ({desc})" if desc and desc not in (name, "undefined") else "")


def top_of(stack: Stack) -> str:
    """The innermost frame of the job's own, without its folder."""
    own = (f for f in stack.frames if not re.search(r"/(?:site|dist)-packages/|/lib/python3|<frozen", f))
    return re.sub(r", .*/([^/]+)$", r", \1", next(own, stack.frames[0] if stack.frames else ""))


def seen_in(stack: Stack) -> Evidence:
    """The top of a stack as evidence."""
    return Evidence(f"rank {stack.rank}: {stack.state + ' ' if stack.state else ''}{' < '.join(stack.frames[:3])}".strip(), stack.source)


def frame_of(hang: Hang, rank: int) -> str:
    """Where a rank was, by its stack, else by its last operation; "" for neither."""
    stack = next((s for s in hang.stacks if s.rank == rank and s.frames), None)
    return top_of(stack) if stack else next((d.last.frame for d in hang.dumps if d.rank == rank and d.last), "")


def source_of(hang: Hang, wait: Wait) -> str:
    """The file that tells of a wait."""
    track = track_of(hang, wait.group, wait.rank)
    return track.source if track else ""


def track_of(hang: Hang, group: str, rank: int) -> Track | None:
    """What is known of a rank in the group of that name; None for nothing."""
    return next((t for g in hang.groups if g.name == group for t in g.tracks if t.rank == rank), None)
