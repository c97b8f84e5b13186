"""Tables of what a job printed: its ranks side by side, and unknown lines."""

from textwrap import shorten

from nccl_runbook.core.facts import grouped
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.facts import Logs, RankLog
from nccl_runbook.messages.judge import when
from nccl_runbook.messages.judge_silent import unheard
from nccl_runbook.report.pictures import Lanes
from nccl_runbook.report.tables import Cell, Table
from nccl_runbook.triage.hypotheses.judge_hypothesis import Answer


def tables(given: Answer) -> list[Table]:
    """Every table with content."""
    logs = given.logs
    printed = [
        (ranks_table, logs.ranks),
        (order_table, logs.ranks[1:]),
        (unknown_table, logs.unknown),
        (files_table, logs.files),
    ]
    return [
        *(table(logs) for table, rows in printed if rows),
    ]


def ranks_table(logs: Logs) -> Table:
    """One row a rank."""
    return Table(
        "What each rank printed",
        [
            "rank",
            "first error",
            "host",
            "GPU",
            "NCCL",
            "transports",
            "enqueued, completed",
            "waited in",
            "last line",
        ],
        [_row(r) for r in logs.ranks],
        "A blank cell means that the log does not contain this value. The rank may still be broken.",
    )


def _row(rank: RankLog) -> list[object]:
    via = ", ".join(f"{name} {count}" for name, count in rank.transports.items()) or rank.network
    works = "; ".join(
        f"{t.op} {t.seq if t.seq is not None else ''}"
        + (f" after {t.ran_ms / 1000:.0f} s" if t.ran_ms > 0 else "")
        for t in rank.timeouts[:3]
    )
    numbers = "; ".join(
        f"{f'group {name}'.strip()}: {rank.enqueued[name]}, {rank.completed.get(name, '?')}"
        for name in rank.enqueued
    )
    error = _short(rank.first_error, 180)  # torch names a source file before the reason
    return [
        str(rank.rank),
        Cell(error, "broken" if error else ""),
        " ".join(rank.hosts[:2]),
        "; ".join(rank.devices[:1]),
        rank.nccl,
        via,
        numbers,
        Cell(works, "warn" if works else ""),
        _short(rank.last),
    ]


def _short(line: LogLine | None, width: int = 90) -> str:
    return shorten(line.text, width, placeholder=" ...") if line else ""


def order_table(logs: Logs) -> Table:
    """Important lines of each rank by time, on one clock; errors of ranks without any time come first."""
    events = [
        (line, Cell(what, tone), ran_ms / 1000)
        for r in logs.ranks
        for line, what, tone, ran_ms in (
            (r.progress, "last progress", "ok", 0),
            (r.first_error, "first error", "broken", 0),
            *(
                (
                    t.at,
                    f"waited {t.ran_ms / 1000:.0f} s" if t.ran_ms > 0 else "in a collective",
                    "warn",
                    max(0, t.ran_ms),
                )
                for t in r.timeouts[:1]
            ),
        )
    ]
    timed = sorted(
        (
            (when(line, logs), line, what, ran_s)
            for line, what, ran_s in events
            if line and line.time is not None
        ),
        key=lambda row: row[0],
    )
    dated = {line.rank for _, line, *_ in timed}
    no_time = [r for r in logs.ranks if timed and r.last and r.rank not in dated]
    began = min((at - ran_s for at, _, _, ran_s in timed), default=0)  # a wait begins before its line
    apart = ", ".join(
        f"{c.clock} {c.offset_s:+.3f} s, give or take {c.error_s:.3f} s" for c in logs.clocks[1:]
    )
    several = len({line.host for _, line, *_ in timed}) > 1
    note = (
        f"Clocks compared with {logs.clocks[0].clock}: {apart}. The order of events that are closer "
        "than these errors is unknown."
        if apart
        else "The clocks of the hosts cannot be aligned, so events are ordered by the time stamps of "
        "their own hosts."
        if several
        else ""
    )
    lanes = grouped(
        [
            *(
                (f"rank {r.rank}", (0, "broken", "printed an error, no time"))
                for r in no_time
                if r.first_error
            ),
            *(
                (f"rank {r.rank}", (0, "", "printed nothing in this log"))
                for r in (unheard(logs) if timed else ())
            ),
            *(
                mark
                for at, line, what, ran_s in sorted(timed, key=lambda row: (row[2].tone == "ok", row[0]))
                for mark in [
                    (f"rank {line.rank}", (at - began, what.tone, what.text)),
                    *(
                        [(f"rank {line.rank}", (max(0, at - began - ran_s), "", "began to wait"))]
                        if ran_s
                        else []
                    ),
                ]
            ),
            *(
                (f"rank {r.rank}", (0, "", "printed its last line, no time"))
                for r in no_time
                if not r.first_error
            ),
        ]
    )
    return Table(
        "Events in order of time" if apart or not several else "Events by the time stamps of each host",
        ["time", "rank", "host", "what", "line"],
        [
            *(
                ["no time", str(r.rank), r.last.host, Cell("first error", "broken"), _short(r.first_error)]
                for r in no_time
                if r.first_error
            ),
            *(
                [f"+{at - began:.3f} s", str(line.rank), line.host, what, _short(line)]
                for at, line, what, _ in timed[:100]
            ),
            *(
                ["no time", str(r.rank), r.last.host, "last line", _short(r.last)]
                for r in no_time
                if not r.first_error
            ),
        ],
        note,
        Lanes(lanes),
    )


def unknown_table(logs: Logs) -> Table:
    """Lines that look like errors and match nothing known."""
    return Table(
        "Lines that look like errors, but match no known message",
        ["times", "first such line", "where"],
        [[str(t.times), t.first.text[:300], f"{t.first.file} line {t.first.line}"] for t in logs.unknown],
        "Lines that differ only in numbers are counted together.",
    )


def files_table(logs: Logs) -> Table:
    """What was read, and what was not and why."""
    missed = {f.name: f.problem or f.left_out for f in logs.files}
    return Table(
        "Files",
        ["file", "bytes", "lines", "result"],
        [
            [
                f.name,
                str(f.size_bytes),
                str(f.lines),
                Cell(missed[f.name] or f.kind or "read", "unknown" if missed[f.name] else ""),
            ]
            for f in logs.files
        ],
    )
