"""A live look at the ranks on this host (`nccl-look.pyz --live`, `nccl-runbook look`): a table at once, the rest after the gap.

For a terminal and as one page. Standard library and Python >= 3.9: nccl-look.pyz writes it where the job hangs.
"""
import os
import sys
from collections import Counter
from html import escape
from typing import Any, Callable, Dict, List, Sequence, Tuple

from nccl_runbook.core.facts import Gap, counted, known, to_json, utc_now
from nccl_runbook.hang.live.ask import Look
from nccl_runbook.hang.live.facts import Live, LiveRank
from nccl_runbook.hang.live.judge import Picture, verdict
from nccl_runbook.hang.live.judge_ranks import WAITING, RankView, main_stacks, words_of
from nccl_runbook.report.markup import TONES, framed, grid, table_html

STEP = "06-timeouts"
REASON = "not judged yet: nccl-runbook look --record FILE"
COLUMNS = ("rank", "host", "pid", "state", "CPU", "waits in", "where it is", "GPU", "does")
MOST_ROWS = 512
DOES = {"waits": "waits in a collective", "device": "waits for its GPU", "spins": "polls in a call", "lock": "stands still",
        "stopped": "STOPPED", "busy": "works on the host", "asleep": "sleeps elsewhere", "missing": "NOT THERE",
        "starting": "has not loaded torch", "moving": "moves", "unknown": "not known"}
# how what a rank does looks, by a key of markup.TONES; the table and the words beside it say it, too
TONE = {**dict.fromkeys(DOES, "broken"), **dict.fromkeys(WAITING, "note"), "moving": "ok", "unknown": "unknown"}


def look(pids: Sequence[int], gap_s: float, say: Callable[[str], None], keep: Callable[[Live], None] = lambda _: None) -> Live:
    """The facts; ``say`` and ``keep`` get the first evidence as soon as it is there. ValueError where a named process may not be read."""
    if not 0 <= gap_s <= 3600:
        raise ValueError(f"gap: {gap_s:g} is not from 0 to 3600 seconds")
    looking = Look(pids)
    hidden = [p for p in pids if not os.access(f"/proc/{p}/environ", os.R_OK)]
    if hidden and not looking.ranks:
        raise ValueError(f"process {hidden[0]} is not readable: it belongs to another user or has just ended. Look as that user, or "
                         "as root")
    first = looking.first()
    say(first_text(first))
    keep(first)
    if not first.ranks or gap_s <= 0:
        return first
    say(f"taking samples for {gap_s:g} s: one sample cannot show a hang")
    return looking.after(gap_s)


def record(live: Live, wall_s: float) -> Dict[str, Any]:
    return unjudged(STEP, REASON, live.taken, wall_s, parameters={"gap_s": live.gap_s},
                    judged={"python": sys.executable, "host": os.uname().nodename}, facts=to_json({"live": live}))


def unjudged(step: str, reason: str, started: str, wall_s: float, **parts: Any) -> Dict[str, Any]:
    """As records.Record reads it; without a judgement."""
    return {"schema": "nccl-runbook/record/1", "step": step, "status": "unknown", "reason": reason, "started": started, "ended": utc_now(),
            "wall_s": round(wall_s, 2), **parts}


def checked_pids(pids: Sequence[int]) -> List[int]:
    """The same; raises ValueError for one without a process, and where there is no /proc."""
    if not os.path.isdir("/proc/self"):
        raise ValueError("a live look needs /proc, which only Linux has: look on the node, and judge the record here with --record")
    gone = [p for p in pids if not os.path.exists(f"/proc/{p}")]
    if gone:
        raise ValueError(f"no process {gone[0]} here: --pid takes pids of this host, as ps shows them")
    return list(pids)


# --- what the reader sees

def cells(look: Live, rank: LiveRank) -> List[str]:
    """What was seen of one rank, by COLUMNS without the last."""
    name = str(rank.rank) if rank.rank is not None else "?"
    if not rank.samples:
        return [name, look.host, str(rank.pid), "gone", "", "", "", ""]
    first, last = rank.samples[0], rank.samples[-1]
    elapsed = last.at_s - first.at_s
    cpu = sum(t.cpu_s for t in last.threads) - sum(t.cpu_s for t in first.threads)
    gpus = [g for g in known(look.gpus) if rank.pid in known(g.pids)]
    return [name, look.host, str(rank.pid), last.threads[0].state, f"{max(0, cpu) / elapsed:.0%}" if elapsed > 0 else "",
            last.threads[0].waits, words_of((main_stacks(rank) or [None])[-1]) or "no stack",
            ", ".join(f"GPU {g.nvml_index}: {g.utilisation_percent[-1]} %, "
                      + (f"power {g.power_w[-1]}" if isinstance(g.power_w[-1], Gap) else f"{g.power_w[-1]:.0f} W")
                      for g in gpus)]


def first_text(look: Live) -> str:
    """The first evidence, before anything can be said about a hang."""
    if not look.ranks:
        return (f"{look.host}: no hung job found. No process of this user has torch loaded or a rank in its environment. "
                "To name one, use --pid")
    rows = [[c[:60] for c in cells(look, r)] for r in look.ranks[:MOST_ROWS]]
    return f"{look.host}: {counted(len(look.ranks), 'rank')} after {look.first_s:.1f} s\n" + "\n".join(grid(_filled(rows)))


def _filled(rows: Sequence[Sequence[str]]) -> List[List[str]]:
    """The rows below their names, without columns that are empty in all."""
    return [[row[i] for i, column in enumerate(zip(*rows)) if any(column)] for row in (COLUMNS, *rows)]


def ordered(picture: Picture) -> List[RankView]:
    """Who did not come first, then the others by rank."""
    return list(dict.fromkeys([*picture.culprits, *picture.ranks]))[:MOST_ROWS]


def table(picture: Picture, looks: Sequence[Live]) -> Tuple[List[str], List[List[str]]]:
    """Column names and one row a rank of the job; columns that are empty for all are left out."""
    seen = {(look.host, r.pid): (look, r) for look in sorted(looks, key=lambda one: one.taken) for r in look.ranks}
    head, *rows = _filled([[*row[:6], v.frame or row[6], row[7], DOES[v.does]] for v in ordered(picture)
                           for it in [seen.get((v.host, v.pid or 0))] for row in [cells(*it) if it else [str(v.rank), v.host, *[""] * 6]]])
    return head, rows


def job_name(picture: Picture) -> str:
    return f"job at {picture.job.partition(' in net:')[0]}" if ":" in picture.job else picture.job


def text(pictures: Sequence[Picture], looks: Sequence[Live]) -> str:
    """The answer for a terminal: a sentence, the ranks, and what was not seen."""
    return "\n\n".join(_block(picture, looks) for picture in pictures) or "no rank was found"


def _block(picture: Picture, looks: Sequence[Live]) -> str:
    head, rows = table(picture, looks)
    kind = f" [{', '.join(filter(None, (picture.kind, picture.status)))}]" if picture.kind else ""
    return "\n".join([f"{job_name(picture)}: {picture.sentence}{kind}", *grid([head, *rows]), *(f"not seen: {n}" for n in picture.not_seen),
                      *[f"next: {picture.decides}"] * bool(picture.decides)])


def looked_at(looks: Sequence[Live]) -> str:
    """Which hosts, when, and what that did to them."""
    taken = ", ".join(f"{look.host} at {look.taken}, {f'samples over {look.gap_s:g} s' if look.gap_s else 'one sample'}" for look in looks)
    return f"Looked at: {taken}. Nothing was stopped, signalled or changed."


def page(pictures: Sequence[Picture], looks: Sequence[Live]) -> str:
    """The page that a node can make: `nccl-runbook look --html` has the fix, too."""
    word = verdict(pictures)
    main = f'<p class="quiet">{escape(looked_at(looks))}</p>' + "".join(_section(n, one, looks) for n, one in enumerate(pictures))
    return framed(main, word, f"{word.capitalize()}: {pictures[0].sentence if pictures else 'no rank was found'}",
                  "", f"live look \u00b7 {looks[0].taken if looks else ''}")


def _section(number: int, picture: Picture, looks: Sequence[Live]) -> str:
    head, rows = table(picture, looks)
    shown = [[*((c, "") for c in row[:-1]), (row[-1], TONES[TONE[view.does]])] for row, view in zip(rows, ordered(picture))]
    told = [picture.kind, picture.status, f"cause {picture.cause}" if picture.cause else ""]
    sentence = f"<p>{escape(picture.sentence[:1].upper() + picture.sentence[1:])}</p>" if number else ""  # the first one is the banner's
    return (f'<section aria-labelledby="job-{number}"><h2 id="job-{number}">{escape(job_name(picture))}</h2>'
            f'{sentence}<p class="quiet small">{escape("; ".join(filter(None, told)))}</p>{_strip(picture.ranks)}'
            + table_html("Ranks, late ranks first", head, shown)
            + _list("Seen", [f"{e.text} ({e.source})" for e in picture.evidence]) + _list("Not seen", picture.not_seen)
            + (f'<h3>Run next</h3><pre class="copy">{escape(picture.decides)}</pre>' if picture.decides else "") + "</section>")


def _strip(views: Sequence[RankView]) -> str:
    """One box a rank with its number, and in words how many do what."""
    boxes = "".join(f'<span style="background:{TONES[TONE[v.does]]}" title="{escape(v.name)}: {DOES[v.does]}">'
                    f'{v.rank if v.rank is not None else "?"}</span>' for v in views[:4096])
    words = "; ".join(f"{counted(n, 'rank')}: {DOES[kind]}" for kind, n in Counter(v.does for v in views).items())
    return f'<p class="ranks">{boxes}<br>{words}</p>'


def _list(title: str, items: Sequence[str]) -> str:
    return f"<h3>{title}</h3><ul>{''.join(f'<li>{escape(i)}</li>' for i in items)}</ul>" if items else ""
