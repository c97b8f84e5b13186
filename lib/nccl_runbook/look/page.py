"""A live look for a terminal and as one page. Standard library and Python >= 3.9: nccl-look.pyz writes it where the job hangs."""
from __future__ import annotations

import html
from collections import Counter
from typing import List, Sequence, Tuple, Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.hang.live.facts import Live, LiveRank
from nccl_runbook.hang.live.judge import Picture, verdict
from nccl_runbook.hang.live.judge_ranks import WAITING, RankView, main_stacks, words_of

COLUMNS = ("rank", "host", "pid", "state", "CPU", "waits in", "where it is", "GPU", "does")
MOST_ROWS = 512
DOES = {"waits": "waits in a collective", "device": "waits for its GPU", "spins": "polls in a call", "lock": "stands still",
        "stopped": "STOPPED", "busy": "works on the host", "asleep": "sleeps elsewhere", "missing": "NOT THERE",
        "starting": "has not loaded torch", "moving": "moves", "unknown": "not known"}
_HERE, _LATE = "#388bfd33", "#f8514966"
TONES = {**dict.fromkeys(DOES, _LATE), **dict.fromkeys(WAITING, _HERE), "moving": "#2ea04333", "unknown": "#8b5cf644",
         "broken": _LATE, "degraded": "#d2992266", "healthy": "#2ea04333"}  # and of a verdict
STYLE = (":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}"
         "h1{font-size:1.5rem;line-height:1.3}table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}"
         "td,th{padding:.2rem .6rem;border:1px solid #8884;text-align:left;vertical-align:top}pre{background:#8882;padding:.5rem;"
         "white-space:pre-wrap;overflow-wrap:anywhere}.ranks span{display:inline-block;min-width:2rem;margin:1px;padding:.15rem .3rem;"
         "text-align:center}.lead{font-weight:600}.word{padding:.15rem .6rem}.small{opacity:.75}")


def cells(look: Live, rank: LiveRank) -> List[str]:
    """What was seen of one rank, by COLUMNS without the last."""
    name = str(rank.rank) if rank.rank is not None else "?"
    if not rank.samples:
        return [name, look.host, str(rank.pid), "gone", "", "", "", ""]
    first, last = rank.samples[0], rank.samples[-1]
    elapsed = last.at_s - first.at_s
    cpu = sum(t.cpu_s for t in last.threads) - sum(t.cpu_s for t in first.threads)
    stack = (main_stacks(rank) or [None])[-1]
    return [name, look.host, str(rank.pid), last.threads[0].state, f"{max(0, cpu) / elapsed:.0%}" if elapsed > 0 else "",
            last.threads[0].waits, words_of(stack) or "no stack", gpu_cell(look, rank)]


def gpu_cell(look: Live, rank: LiveRank) -> str:
    """ "GPU 3: 100 %, 131 W" at the last moment."""
    gpus = [] if isinstance(look.gpus, Gap) else [g for g in look.gpus if not isinstance(g.pids, Gap) and rank.pid in g.pids]
    return ", ".join(f"GPU {g.nvml_index}: {g.utilisation_percent[-1]} %, {_watts(g.power_w[-1])}" for g in gpus)


def _watts(value: Union[float, Gap]) -> str:
    return f"power {value}" if isinstance(value, Gap) else f"{value:.0f} W"


def grid(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned text; the last column is not padded."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows)


def first_text(look: Live) -> str:
    """The first evidence, before anything can be said about a hang."""
    if not look.ranks:
        return f"{look.host}: no process of this user has torch loaded or a rank in its environment; name one with --pid"
    rows = [[c[:60] for c in cells(look, r)] for r in look.ranks[:MOST_ROWS]]
    return f"{look.host}: {len(look.ranks)} ranks after {look.first_s:.1f} s\n" + grid(_filled(rows))


def _filled(rows: Sequence[Sequence[str]]) -> List[List[str]]:
    """The rows below their names, without columns that are empty in all."""
    return [[row[i] for i, column in enumerate(zip(*rows)) if any(column)] for row in (COLUMNS, *rows)]


def ordered(picture: Picture) -> List[RankView]:
    """Who did not come first, then the others by rank."""
    late = set(picture.culprits)
    return (picture.culprits + [v for v in picture.ranks if v not in late])[:MOST_ROWS]


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
    blocks = []
    for one in pictures:
        head, rows = table(one, looks)
        lines = [f"{job_name(one)}: {one.sentence}" + (f" [{one.kind}{', ' + one.status if one.status else ''}]" if one.kind else ""),
                 grid([head, *rows])]
        lines += [f"not seen: {n}" for n in one.not_seen] + ([f"next: {one.decides}"] if one.decides else [])
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) or "no rank was found"


def page(pictures: Sequence[Picture], looks: Sequence[Live], ended: str = "") -> str:
    """One page: no script, no request, everything escaped. ``ended``: how the command ends, "" where it judges nothing."""
    word = verdict(pictures)
    told = f"<p class=lead><span class=word style=\"background:{TONES[word]}\">{word}</span> {html.escape(ended)}</p>"
    body = told + ("".join(_section(one, looks) for one in pictures) or "<h1>No rank was found</h1>")
    taken = ", ".join(f"{look.host} at {look.taken}, {f'samples over {look.gap_s:g} s' if look.gap_s else 'one sample'}" for look in looks)
    title = html.escape(pictures[0].sentence[:120] if pictures else "no rank was found")
    return ('<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{title}</title><style>{STYLE}</style></head><body>{body}"
            f"<p class=small>Looked at: {html.escape(taken)}. Nothing was stopped, signalled or changed.</p></body></html>\n")


def _section(picture: Picture, looks: Sequence[Live]) -> str:
    head, rows = table(picture, looks)
    columns = "".join(f'<th scope="col">{html.escape(c)}</th>' for c in head)
    body = "".join(f"<tr>{_row(row, view)}</tr>" for row, view in zip(rows, ordered(picture)))
    told = [picture.kind, picture.status, f"cause {picture.cause}" if picture.cause else "", job_name(picture)]
    return (f"<h1>{html.escape(picture.sentence[:1].upper() + picture.sentence[1:])}</h1>"
            f"<p class=small>{html.escape('; '.join(t for t in told if t))}</p>{_strip(picture.ranks)}"
            f"<table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"
            + _list("Seen", [f"{e.text} ({e.source})" for e in picture.evidence]) + _list("What we could not see", picture.not_seen)
            + (f"<p class=lead>Next, to paste</p><pre>{html.escape(picture.decides)}</pre>" if picture.decides else ""))


def _strip(views: Sequence[RankView]) -> str:
    """One box a rank: its number, and a colour for what it does, which the table and the words below say, too."""
    boxes = "".join(f'<span style="background:{TONES[v.does]}" title="{html.escape(v.name)}: {DOES[v.does]}">'
                    f'{v.rank if v.rank is not None else "?"}</span>' for v in views[:4096])
    kinds = Counter(v.does for v in views)
    words = "; ".join(f"{n} rank{'s' * (n > 1)}: {DOES[kind]}" for kind, n in kinds.items())
    return f"<p class=ranks>{boxes}<br>{words}</p>"


def _row(row: Sequence[str], view: RankView) -> str:
    plain = "".join(f"<td>{html.escape(c)}</td>" for c in row[1:-1])
    return f'<th scope="row">{html.escape(row[0])}</th>{plain}<td style="background:{TONES[view.does]}">{html.escape(row[-1])}</td>'


def _list(title: str, items: Sequence[str]) -> str:
    return f"<p class=lead>{title}</p><ul>{''.join(f'<li>{html.escape(i)}</li>' for i in items)}</ul>" if items else ""
