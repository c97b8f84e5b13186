"""Tables of a hung job: who stands where. Ranks in the same place share a row, so that
1,024 of them fit a page."""

import dataclasses
import itertools
import os
from collections.abc import Collection, Sequence

from nccl_runbook.core.facts import grouped
from nccl_runbook.hang.facts import Group, Hang, Track
from nccl_runbook.hang.judge_stacks import frames_shown
from nccl_runbook.hang.live.facts import Live
from nccl_runbook.hang.live.judge import judge_looks
from nccl_runbook.hang.live.judge_hosts import together
from nccl_runbook.hang.live.ranks.judge_picture import Picture
from nccl_runbook.hang.live.ranks.table_ranks import TONE, job_name, looked_at, ordered, table
from nccl_runbook.report.tables import Cell, Table

_LETTERS = {
    "c": ("done", "ok"),
    "s": ("started", "note"),
    "o": ("issued", "warn"),
    "t": ("timed out", "broken"),
    "r": ("returned", "note"),
    ".": ("not issued", "broken"),
    "?": ("overwritten", "muted"),
}
MOST_GROUPS = 12


def tables(hang: Hang, culprits: Collection[int] = (), group: str = "") -> list[Table]:
    """Every table with content: first the ``group`` that decides, then groups with open operations."""
    groups = sorted(
        (g for g in hang.groups if any(t.tail for t in g.tracks)),
        key=lambda g: (
            g.name != group,
            not g.differences and all(t.opened is None for t in g.tracks),
            not set(culprits) & set(g.ranks),
            g.name,
        ),
    )
    shown = [matrix(g, culprits) for g in groups[:MOST_GROUPS]]
    if len(groups) > MOST_GROUPS:
        shown[-1] = dataclasses.replace(
            shown[-1], note=f"{len(groups) - MOST_GROUPS} more groups are not shown."
        )
    stacks = Table(
        "Stacks",
        ["ranks", "state", "frames", "from"],
        [
            [ranges(sorted({*ranks})), *place]
            for place, ranks in grouped(
                ((s.state, frames_shown(s, 6), s.source), s.rank) for s in hang.stacks
            ).items()
        ],
    )
    return [
        *shown,
        *(looked_table(picture, hang.looks) for picture in judge_looks(together(hang.looks))),
        *([ranks_table(hang, culprits)] if hang.groups else []),
        *([stacks] if hang.stacks else []),
        files_table(hang),
    ]


def matrix(group: Group, culprits: Collection[int] = ()) -> Table:
    """Ranks against sequence numbers; words repeat what colours show. Numbers that all ranks completed at
    the beginning share a column."""
    # without a dump only its log shows how far a rank came
    tails = {
        t.rank: t.tail
        or "".join(
            "c" if s <= t.completed else "t" if t.opened and s == t.opened.seq else "o"
            for s in range(group.tail_from, t.enqueued + 1)
        )
        for t in group.tracks
    }
    width = max(map(len, tails.values()))
    common = os.path.commonprefix([*tails.values()])
    start = max(0, len(common) - len(common.lstrip("c")) - 1)
    same = grouped(((rank not in culprits, tail), rank) for rank, tail in tails.items())
    rows = [
        [
            Cell(ranges(ranks), "" if innocent else "broken"),
            *(Cell(*_LETTERS.get(tail[at : at + 1], ("no entry", "muted"))) for at in range(start, width)),
        ]
        for (innocent, tail), ranks in sorted(same.items(), key=lambda row: (row[0][0], row[1]))
    ]
    absent = sorted(set(group.ranks) - {t.rank for t in group.tracks})
    rows += [[Cell(ranges(absent), "muted"), *[Cell("no dump", "muted")] * (width - start)]] if absent else []
    desc = f" ({group.desc})" if group.desc not in ("", "undefined", group.name) else ""
    numbers = range(group.tail_from, group.tail_from + width)
    return Table(
        f"Group {group.name}{desc}: ranks against collectives",
        ["ranks", ranges(numbers[: start + 1]), *map(str, numbers[start + 1 :])],
        rows,
        ""
        if group.certain
        else (
            "The dumps do not record the members of this group, so these are the ranks that used the group."
        ),
    )


def looked_table(picture: Picture, looks: Sequence[Live]) -> Table:
    """One row a rank of a live look, ranks that did not come first."""
    head, rows = table(picture, looks)
    return Table(
        f"{job_name(picture)}: ranks",
        head,
        [
            [*row[:-1], Cell(row[-1], TONE[view.does])]
            for row, view in zip(rows, ordered(picture), strict=True)
        ],
        looked_at(looks),
        drawn="strip",
    )


def ranges(ranks: Sequence[int]) -> str:
    """ "0-3, 7": ascending numbers as ranges."""
    runs = [
        [rank for _, rank in run] for _, run in itertools.groupby(enumerate(ranks), lambda at: at[1] - at[0])
    ]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def ranks_table(hang: Hang, culprits: Collection[int] = ()) -> Table:
    """How far each rank came in each group, culprits first: last issued, last completed, and current
    operation."""
    return Table(
        "How far each rank came",
        ["rank", "group", "last issued", "last completed", "open", "at", "from"],
        [
            _rank_row(group, track, track.rank in culprits)
            for group, track in sorted(
                ((group, track) for group in hang.groups for track in group.tracks),
                key=lambda row: (row[1].rank not in culprits, row[1].rank, row[0].name),
            )
        ],
    )


def _rank_row(group: Group, track: Track, culprit: bool) -> list[object]:
    opened, last = track.opened, track.opened or track.last
    return [
        Cell(str(track.rank), "broken" if culprit else ""),
        " ".join(dict.fromkeys((group.name, group.desc))).strip(),
        str(track.enqueued),
        str(track.completed),
        Cell(
            f"{opened.call.replace(' x ?', ' elements')} as number {opened.seq}, {opened.state}"[:90], "warn"
        )
        if opened
        else "",
        last.frame if last else "",
        "/".join(track.source.split("/")[-2:]),
    ]


def files_table(hang: Hang) -> Table:
    """What was read, and what was not used and why."""
    foreign = "was read, but does not look like the log of a GPU job" if hang.logs.foreign else ""
    odd = {f: f.problem or (foreign if f.what == "log" else "") for f in hang.files}
    return Table(
        "Files",
        ["file", "kind", "rank", "how it went"],
        [
            [
                f.name,
                f.what,
                "" if f.rank is None else str(f.rank),
                Cell(odd[f] or "read", "unknown" if odd[f] else ""),
            ]
            for f in sorted(hang.files, key=lambda f: (not odd[f], f.name))
        ],
    )
