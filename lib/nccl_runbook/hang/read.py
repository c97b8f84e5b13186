"""What a hung job left, put together: dumps of its ranks, logs, saved stacks, live looks.
One dump at a time, in any order."""

import collections
import dataclasses
import os

from nccl_runbook.core.facts import Gap, fields_in, grouped
from nccl_runbook.core.redact import Redactor
from nccl_runbook.hang.dumps.columns import Reading
from nccl_runbook.hang.dumps.operations import MAX_RANKS
from nccl_runbook.hang.dumps.times import Times, latecomers
from nccl_runbook.hang.facts import (
    EARLIER,
    Dump,
    Group,
    Hang,
    HangFile,
    Op,
    Track,
)
from nccl_runbook.hang.inputs.read_groups import Key, channels, counts, group_of
from nccl_runbook.hang.inputs.read_inputs import Inputs, one_a_rank
from nccl_runbook.logs.file import Limit
from nccl_runbook.logs.kind import HEAD_BYTES, READ_BY_HANG, kind
from nccl_runbook.logs.sources import sources
from nccl_runbook.logs.text import attempt_of_name
from nccl_runbook.messages import excerpt, read as logs
from nccl_runbook.messages.facts import Logs, RankLog

_LATE = ("late", "late_ms", "late_error_ms")  # of a Dump: what latecomers gives


def collect(paths: list[str] | str, limit: Limit | None = None) -> Hang:
    """The facts in these files and folders. Never raises for their content: ``files`` says why a file was
    not used."""
    limit = limit or Limit()
    inputs = Inputs(paths, limit)
    readings = one_a_rank(inputs)
    before = _earlier_logs(inputs.logs)
    inputs.files += [HangFile(name, "log", None, why) for name, why in before.items()]
    logged = (
        logs.collect(paths, "", None, limit, frozenset(f.name for f in inputs.files), newest=True)
        if inputs.logs
        else Logs([], "", {}, [])
    )  # its tables take 0.1 s
    inputs.files += [HangFile(f.name, "log", problem=f.problem or f.left_out) for f in logged.files]
    times, members = Times(readings, inputs.stamps()), _members(readings, {r.rank for r in logged.ranks})
    odd, late = _odd(readings), latecomers(readings)
    return dataclasses.replace(  # the secrets of the logs are out already
        Redactor(os.environ).json(
            Hang(
                files=sorted(
                    (dataclasses.replace(f, name=excerpt.short(f.name)) for f in inputs.files),
                    key=lambda f: f.name,
                ),
                dumps=[
                    Dump(
                        **{
                            **fields_in(Dump, vars(reading)),
                            "rank": rank,
                            "backend": "gloo" if reading.gloo else "nccl",
                            "written": times.written.get(rank),
                            "left_out": odd[rank],
                            "last": times.op(rank, reading.last),
                            **dict(zip(_LATE, late.get(rank, ()))),
                        }
                    )
                    for rank, reading in sorted(readings.items())
                ],
                groups=_with_logs(
                    [
                        group_of(key, certain, readings, inputs.names, times)
                        for key, certain in sorted(members.items())
                    ],
                    [r for r in logged.ranks if r.rank not in readings],
                    logged.ranks,
                    {s.rank for s in inputs.stacks},
                ),
                channels=channels(readings, members, times),
                stacks=sorted(inputs.stacks, key=lambda s: (s.rank, s.source)),
                logs=Logs([], "", {}, []),
                counts=counts(paths, {n for n in inputs.logs if n not in before}, limit),
                clocks=times.clocks,
                looks=inputs.looks,
                ras=inputs.ras,
            )
        ),
        logs=logged,
    )


def among(paths: list[str] | str) -> list[str] | str:
    """The paths if there are dumps, stacks or answers of RAS among these files, else an empty text."""
    heads = (source.peek(HEAD_BYTES) for source in sources(paths))
    return (
        paths
        if any(
            b"pg_config" in head or b"nccl_version" in head or READ_BY_HANG in kind(head)[0] for head in heads
        )
        else ""
    )


def of_record(hang: Hang | Gap, record_path: str) -> Hang:
    """The facts as recorded; from the record of a live look, that look."""
    return collect([record_path]) if isinstance(hang, Gap) else hang


def _earlier_logs(names: list[str]) -> dict[str, str]:
    """Logs of attempts before the last of their launch, each with a sentence."""
    attempts = {name: attempt_of_name(name) for name in names}
    last = {launch: max(numbers) for launch, numbers in grouped(attempts.values()).items()}
    return {
        name: f"{EARLIER}: this file is of attempt {number}, and the answer is about attempt {last[launch]}"
        for name, (launch, number) in attempts.items()
        if number < last[launch]
    }


def _members(readings: dict[int, Reading], logged: set[int]) -> dict[Key, bool]:
    """Groups by name and members, since several sets of ranks may use one name; and whether a dump lists the
    members."""
    groups: dict[Key, bool] = {}
    users = grouped(
        (name, rank)
        for rank, reading in readings.items()
        for name in reading.columns.keys() - reading.members.keys()
    )
    everybody = set(readings)
    for rank, reading in readings.items():
        for name, (desc, ranks) in reading.members.items():
            everybody |= set(ranks)
            if name in reading.columns or (rank in ranks and name):
                groups[
                    name, desc or (reading.columns[name].desc if name in reading.columns else ""), ranks
                ] = True
    # a file may name any rank
    everybody = set(range(top + 1)) if (top := max(everybody | logged, default=-1)) < MAX_RANKS else everybody
    for name, ranks in users.items():
        desc = next((r.columns[name].desc for r in readings.values() if name in r.columns), "")
        groups.setdefault((name, desc, tuple(sorted(everybody if desc == "default_pg" else ranks))), False)
    return groups


def _with_logs(
    groups: list[Group], rows: list[RankLog], everybody: list[RankLog], stacked: set[int]
) -> list[Group]:
    """Ranks without a dump, as far as watchdog and heartbeat lines show: last number issued, last
    completed, and which timed out."""
    world = sorted(
        {r.rank for r in everybody}
        | stacked
        | set(range(min(max((r.nranks or 0 for r in everybody), default=0), 1 << 16)))
    )
    for row in rows:
        for label in row.enqueued or {t.group: 0 for t in row.timeouts[:1]}:
            fits = next(
                (i for i, g in enumerate(groups) if label in (g.desc, g.name) and row.rank in g.ranks), None
            )
            if fits is None:
                members = (
                    world
                    if label in ("default_pg", "0", "")
                    else [r.rank for r in everybody if label in r.enqueued]
                )
                fits, groups = (
                    len(groups),
                    [
                        *groups,
                        Group(
                            label, label, ranks=members, certain=False, tracks=[], differences=[], tail_from=1
                        ),
                    ],
                )
            groups[fits] = dataclasses.replace(
                groups[fits],
                tracks=sorted([*groups[fits].tracks, _log_track(row, label)], key=lambda t: t.rank),
            )
    return groups


def _log_track(row: RankLog, label: str) -> Track:
    work = min(
        (
            t
            for t in row.timeouts
            if t.seq is not None and t.group in (label, "" if len(row.enqueued) < 2 else label)
        ),
        key=lambda t: t.seq,
        default=None,
    )
    opened = (
        Op(work.seq or 0, f"{work.op.lower()} {work.numel_in or 0} x ?", "timed-out", work.timeout_ms)
        if work
        else None
    )
    issued, completed = (
        max(row.enqueued.get(label, 0), opened.seq if opened else 0),
        max(0, row.completed.get(label, 0)),
    )
    return Track(
        rank=row.rank,
        enqueued=issued,
        completed=completed,
        joined=completed,
        known=True,
        opened=opened,
        last=opened,
        tail="",
        source=" ".join(row.files[:1]),
    )


def _odd(readings: dict[int, Reading]) -> dict[int, list[str] | None]:
    """Of ranks with a step that broke their own habit and few others share, or that nobody else took
    from where others went elsewhere: what their habit, or that of the others, had in the place of such
    steps. None for all others."""
    holders = collections.Counter(step for reading in readings.values() for step in reading.steps)
    passed = collections.Counter(
        place for reading in readings.values() for place in {at for _, at, _ in reading.steps.values()}
    )
    usual = grouped(
        (place, name)
        for reading in readings.values()
        for level, place, names in reading.steps.values()
        if level < 2
        for name in names
    )
    # ranks of groups without a description go different ways by nature
    used = collections.Counter(
        desc for reading in readings.values() for desc in {c.desc for c in reading.columns.values()}
    )
    odd = {
        rank: [
            set(names) if level == 2 else set(usual.get(place, ())) - set(names)
            for step, (level, place, names) in reading.steps.items()
            if (level == 2 and holders[step] <= max(1, len(readings) // 4))
            or (
                level == 1
                and holders[step] == 1
                and passed[place] > 2
                and used[names[0].rpartition(" ")[0]] == len(readings)
            )
        ]
        for rank, reading in readings.items()
    }
    return {rank: sorted(set().union(*steps)) if steps else None for rank, steps in odd.items()}
