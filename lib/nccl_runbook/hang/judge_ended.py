"""Ranks whose own output shows that they raised an exception or ended."""

import dataclasses
from textwrap import shorten

from nccl_runbook.core.findings import Evidence
from nccl_runbook.hang.facts import Hang, Op
from nccl_runbook.hang.judge_graph import Graph
from nccl_runbook.hang.judge_stacks import frame_of, seen_in, top_of
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.clues import ECHO, LAST_WORDS
from nccl_runbook.messages.judge import raised_first


@dataclasses.dataclass(frozen=True)
class Accused:
    """One rank that did not come, or called another operation. ``frame``: where it was, empty if unknown;
    ``in_call``: whether that is the line of its own open or wrong call; ``doubtful``: at most possible."""

    rank: int
    kind: str
    says: str
    frame: str
    evidence: tuple[Evidence, ...]
    op: Op | None = None
    group: str = ""
    doubtful: bool = False
    in_call: bool = False


def ended_ranks(hang: Hang, graph: Graph) -> list[Accused]:
    """Ranks that others wait for and that ended with an error of their own, or stand still in state T."""
    waited, first = {r for w in graph.all() for r in w.on | w.perhaps}, raised(hang)
    return [
        *(
            Accused(
                line.rank,
                "dead",
                f"ended with its own error: {shorten(line.text, 120, placeholder=' ...')}",
                frame_of(hang, line.rank),
                (quoted(line),),
            )
            for line in first
            if line.rank is not None and (line.rank in waited if hang.dumps else len(first) == 1)
        ),
        *(
            Accused(stack.rank, "stopped", "is stopped (process state T)", top_of(stack), (seen_in(stack),))
            for stack in hang.stacks
            if stack.state[:1] in ("T", "t") and stack.rank in waited
        ),
    ]


def quoted(line: LogLine) -> Evidence:
    """A log line as evidence, with its file and line."""
    return Evidence(line.text, f"{line.file} line {line.line}")


def raised(hang: Hang) -> list[LogLine]:
    """The first error of a rank itself, and those that may have come earlier within the error of the hosts'
    clocks. With dumps, a rank is gone if it left none and its log ends with its error; an error after which
    the rank goes on was handled."""
    lines = [line for line in raised_first(hang.logs)[0][:3] if not ECHO.search(line.text)]
    alive = {d.rank for d in hang.dumps}
    gone = [
        (r.first_error, r.last)
        for r in hang.logs.ranks
        if alive and r.rank not in alive and r.first_error and r.last and not r.warned
    ]
    return lines or [
        e
        for e, last in gone
        if last.file == e.file
        and (last.line == e.line or LAST_WORDS.search(last.text))
        and not ECHO.search(e.text)
    ]
