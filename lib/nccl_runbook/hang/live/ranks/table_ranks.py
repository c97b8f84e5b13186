"""The table of ranks of a live look."""

from typing import List, Sequence, Tuple

from nccl_runbook.core.facts import Gap
from nccl_runbook.hang.live.facts import Live, LiveRank
from nccl_runbook.hang.live.ranks.judge_picture import WAITING, Picture, RankView
from nccl_runbook.hang.live.ranks.judge_stacks import main_stacks, words_of

COLUMNS = ("rank", "host", "pid", "state", "CPU", "waits in", "where the rank is", "GPU", "does")
MOST_ROWS = 512
DOES = {
    "waits": "waits in a collective",
    "device": "waits for its GPU",
    "spins": "polls in a call",
    "lock": "stands still",
    "stopped": "STOPPED",
    "busy": "is in its own code",
    "asleep": "sleeps elsewhere",
    "missing": "NOT THERE",
    "starting": "has not loaded torch",
    "moving": "moves",
    "unknown": "not known",
}
# how what a rank does looks, by a key of markup.TONES; the table and the words beside it say it, too
TONE = {
    **dict.fromkeys(DOES, "broken"),
    **dict.fromkeys(WAITING, "note"),
    "moving": "ok",
    "unknown": "unknown",
}


def cells(look: Live, rank: LiveRank) -> List[str]:
    """Cells of one rank's row, in the order of COLUMNS without the last."""
    name = str(rank.rank) if rank.rank is not None else "?"
    if not rank.samples:
        return [name, look.host, str(rank.pid), "gone", "", "", "", ""]
    first, last = rank.samples[0], rank.samples[-1]
    elapsed = last.at_s - first.at_s
    cpu = sum(t.cpu_s for t in last.threads) - sum(t.cpu_s for t in first.threads)
    gpus = (
        []
        if isinstance(look.gpus, Gap)
        else [g for g in look.gpus if not isinstance(g.pids, Gap) and rank.pid in g.pids]
    )
    watts = [
        f"power {g.power_w[-1]}" if isinstance(g.power_w[-1], Gap) else f"{g.power_w[-1]:.0f} W" for g in gpus
    ]
    return [
        name,
        look.host,
        str(rank.pid),
        last.threads[0].state,
        f"{max(0, cpu) / elapsed:.0%}" if elapsed > 0 else "",
        last.threads[0].waits,
        words_of((main_stacks(rank) or [None])[-1]) or "no stack",
        ", ".join(
            f"GPU {g.nvml_index}: {g.utilisation_percent[-1]} %, {power}" for g, power in zip(gpus, watts)
        ),
    ]


def filled(rows: Sequence[Sequence[str]]) -> List[List[str]]:
    """The rows below their headings, without empty columns."""
    return [[row[i] for i, column in enumerate(zip(*rows)) if any(column)] for row in (COLUMNS, *rows)]


def ordered(picture: Picture) -> List[RankView]:
    """Ranks that did not come first, then the others by rank."""
    late = set(picture.culprits)
    return (picture.culprits + [v for v in picture.ranks if v not in late])[:MOST_ROWS]


def table(picture: Picture, looks: Sequence[Live]) -> Tuple[List[str], List[List[str]]]:
    """(column names, one row a rank of the job), without empty columns."""
    shown = {
        (look.host, r.pid): (look, r) for look in sorted(looks, key=lambda one: one.taken) for r in look.ranks
    }
    rows = []
    for v in ordered(picture):
        seen_at = shown.get((v.host, v.pid or 0))
        row = cells(*seen_at) if seen_at else [str(v.rank), v.host, *[""] * 6]
        rows.append([*row[:6], v.frame or row[6], row[7], DOES[v.does]])
    head, *rows = filled(rows)
    return head, rows


def job_name(picture: Picture) -> str:
    """ "job at 10.0.0.1:29500", without the network namespace; else the job's name as it is."""
    return f"job at {picture.job.partition(' in net:')[0]}" if ":" in picture.job else picture.job


def looked_at(looks: Sequence[Live]) -> str:
    """Which hosts were looked at, when, and how that affected the ranks."""
    taken = ", ".join(
        f"{look.host} at {look.taken}, {f'samples over {look.gap_s:g} s' if look.gap_s else 'one sample'}"
        for look in looks
    )
    return f"Examined: {taken}. The tool stopped, signalled and changed no process."
