"""A live look at the ranks on this host (`nccl-look.pyz --live`, `nccl-runbook look`): a table
at once, the rest after the gap.

For a terminal and as one page. Standard library and Python >= 3.9: nccl-look.pyz
writes it where the job hangs.
"""

import os
import sys
from collections import Counter
from dataclasses import replace
from html import escape
from typing import Any, Callable, Dict, List, Sequence

from nccl_runbook.core.facts import Unusable, counted, to_json, utc_now
from nccl_runbook.hang.live import ask_proc
from nccl_runbook.hang.live.ask import Look
from nccl_runbook.hang.live.facts import Live
from nccl_runbook.hang.live.faults.judge_others import NO_JOB
from nccl_runbook.hang.live.judge import Picture, judge_looks, verdict
from nccl_runbook.hang.live.ranks.judge_picture import RankView
from nccl_runbook.hang.live.ranks.table_ranks import (
    DOES,
    MOST_ROWS,
    TONE,
    cells,
    filled,
    job_name,
    looked_at,
    ordered,
    table,
)
from nccl_runbook.report.markup import TONES, framed, grid, table_html

STEP = "06-timeouts"
REASON = "not judged yet: nccl-runbook look --record FILE"


def look(
    pids: Sequence[int],
    gap_s: float,
    say: Callable[[str], None],
    keep: Callable[[Live], None] = lambda _: None,
) -> Live:
    """The facts of one look; ``say`` and ``keep`` receive the first evidence at once. ValueError if no named
    process is a rank any more, and one is not readable or has ended."""
    if not 0 <= gap_s <= 3600:
        raise Unusable(f"gap: {gap_s:g} is out of range. The gap must be between 0 and 3600 seconds")
    looking = Look(pids)
    # process 1 may itself be a rank, in a container without a launcher
    if (
        1 in pids
        and 1 not in [r.pid for r in looking.ranks]
        and (below := [r.launcher for r in looking.ranks if r.launcher != 1])
    ):
        raise Unusable(
            "process 1 is the ancestor of every job here. Name the pid of one rank or launcher, such as "
            f"{below[0]}"
        )
    first = looking.first()
    # a named one may have ended since it was checked
    if not first.ranks and (
        hidden := [p for p in checked_pids(pids) if not os.access(f"/proc/{p}/environ", os.R_OK)]
    ):
        raise Unusable(
            f"process {hidden[0]} is not readable, because it belongs to another user or has just "
            "ended. Run this command as that user, or as root"
        )
    if not pids:  # whoever uses torch and shows no sign of distributed work
        kept = {v.pid for p in judge_looks([first]) if p.job != NO_JOB for v in p.ranks}
        looking.ranks = [r for r in looking.ranks if r.pid in kept]
        looking.facts = first = replace(first, ranks=[r for r in first.ranks if r.pid in kept])
    say(first_text(first, pids))
    keep(first)
    if not first.ranks or gap_s <= 0:
        return first
    say(f"taking samples for {gap_s:g} s, because one sample cannot show a hang")
    return looking.after(gap_s)


def record(live: Live, wall_s: float) -> Dict[str, Any]:
    """The record of a look that nobody has judged yet. ``wall_s``: seconds."""
    return unjudged(
        STEP,
        REASON,
        live.taken,
        wall_s,
        parameters={"gap_s": live.gap_s},
        judged={"python": sys.executable, "host": os.uname().nodename},
        facts=to_json({"live": live}),
    )


def unjudged(step: str, reason: str, started: str, wall_s: float, **parts: Any) -> Dict[str, Any]:
    """A record without a judgement, in the form that records.Record reads."""
    return {
        "schema": "nccl-runbook/record/1",
        "step": step,
        "status": "unknown",
        "reason": reason,
        "started": started,
        "ended": utc_now(),
        "wall_s": round(wall_s, 2),
        **parts,
    }


def checked_pids(pids: Sequence[int]) -> List[int]:
    """The pids; ValueError for one that does not run, and on a system without /proc."""
    if not os.path.isdir("/proc/self"):
        raise Unusable(
            "`look` reads /proc, which only Linux has. Run `look` on the node, and judge its record on "
            "this machine with --record"
        )
    if gone := [p for p in pids if not ask_proc.runs(p)]:
        raise Unusable(
            f"no process {gone[0]} runs on this host. If the job has ended, its log or dumps show why"
        )
    return list(pids)


# --- what the reader sees


def first_text(look: Live, pids: Sequence[int] = ()) -> str:
    """The first evidence as text, before a hang can be judged. ``pids``: named ones."""
    if not look.ranks:
        return f"{look.host}: no hung job found. " + (
            f"Neither process {' nor '.join(map(str, pids))} nor any child process has loaded torch or has a "
            "rank in its environment"
            if pids
            else "No process of this user has a rank in its environment, or uses torch and is "
            "connected to another process. Run this as the job's user, or name a rank with --pid"
        )
    rows = filled([[c[:60] for c in cells(look, r)] for r in look.ranks[:MOST_ROWS]])
    return "\n".join([f"{look.host}: first samples, after {look.first_s:.1f} s", *grid(rows)])


def text(pictures: Sequence[Picture], looks: Sequence[Live]) -> str:
    """The answer for a terminal: a sentence, the ranks, and what was not seen."""
    return "\n\n".join(_block(picture, looks) for picture in pictures) or "no rank was found"


def _block(picture: Picture, looks: Sequence[Live]) -> str:
    head, rows = table(picture, looks)
    return "\n".join(
        [
            f"{job_name(picture)}: {picture.sentence} [{_known(picture)}]",
            *grid([head, *rows]),
            *(f"not seen: {n}" for n in picture.not_seen),
            *([f"next: {picture.decides}"] if picture.decides else []),
        ]
    )


def headline(pictures: Sequence[Picture], sure: str) -> str:
    """The first sentence of a page: of the worst job, which has its name beside others. ``sure``: how sure
    its cause is, in brackets."""
    job = f"{job_name(pictures[0])}: " if len(pictures) > 1 else ""
    sentence = f"{job}{pictures[0].sentence}{sure}" if pictures else "no rank was found"
    return f"{verdict(pictures).capitalize()}: {sentence}"


def _known(picture: Picture) -> str:
    """ "likely: rank-busy-on-host"; without a cause and its status, the verdict."""
    return ": ".join(filter(None, (picture.status, picture.cause))) or verdict([picture])


def page(pictures: Sequence[Picture], looks: Sequence[Live]) -> str:
    """The page that a node can make; `nccl-runbook look --html` adds the fix."""
    sure = f" ({_known(pictures[0])})" if pictures and pictures[0].status else ""
    return framed(
        f'<p class="quiet">{escape(looked_at(looks))}</p>'
        + "".join(_section(n, one, looks) for n, one in enumerate(pictures)),
        verdict(pictures),
        headline(pictures, sure),
        "",
        f"running job \u00b7 {looks[0].taken if looks else ''}",
    )


def _section(number: int, picture: Picture, looks: Sequence[Live]) -> str:
    head, rows = table(picture, looks)
    shown = [
        [*((c, "") for c in row[:-1]), (row[-1], TONES[TONE[view.does]])]
        for row, view in zip(rows, ordered(picture))
    ]
    sentence = picture.sentence[:1].upper() + picture.sentence[1:]
    # the first one is the banner's
    also = f"<p>{escape(sentence)} ({escape(_known(picture))})</p>" if number else ""
    return (
        f'<section aria-labelledby="job-{number}"><h2 id="job-{number}">{escape(job_name(picture))}</h2>'
        f"{also}{_strip(picture.ranks)}"
        + table_html("Ranks", head, shown)
        + _list("Seen", [f"{e.text} ({e.source})" for e in picture.evidence])
        + _list("Not seen", picture.not_seen)
        + (f'<h3>Run next</h3><pre class="copy">{escape(picture.decides)}</pre>' if picture.decides else "")
        + "</section>"
    )


def _strip(views: Sequence[RankView]) -> str:
    """One box a rank with its number, and in words how many do what."""
    boxes = "".join(
        f'<span style="background:{TONES[TONE[v.does]]}" title="{escape(v.name)}: {DOES[v.does]}">'
        f"{v.name.split()[1]}</span>"
        for v in views[:4096]
    )
    words = "; ".join(
        f"{counted(n, 'rank')}: {DOES[kind]}" for kind, n in Counter(v.does for v in views).items()
    )
    return f'<p class="ranks">{boxes}<br>{words}</p>'


def _list(title: str, items: Sequence[str]) -> str:
    return f"<h3>{title}</h3><ul>{''.join(f'<li>{escape(i)}</li>' for i in items)}</ul>" if items else ""
