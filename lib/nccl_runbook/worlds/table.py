"""Tables of worlds: the ladder, GPUs alone, pairs as a heat map, and the transports."""

from nccl_runbook.core.facts import TIMED_OPS, Gap
from nccl_runbook.core.facts_world import World
from nccl_runbook.machine.link_limits import Links, limit
from nccl_runbook.report.pictures import Curve, size_words
from nccl_runbook.report.tables import Cell, Table, titled
from nccl_runbook.worlds.facts import Arms, Ladder, Pairs, Search, Singles, Trial
from nccl_runbook.worlds.judge_control import outcome


def _outcome(trial: Trial) -> Cell:
    """How the world ended; a warning if only one of two runs failed."""
    ended = trial.world.ended
    if trial.passed:
        return Cell("passed", "ok")
    if trial.again is not None and trial.again.passed:
        return Cell(f"{ended}, in 1 of 2 runs", "warn")
    return Cell(ended, "unknown" if ended == "lost" else "broken")


def _figure(value: float | None) -> str:
    """With one decimal from 1 on, with two below; empty for None."""
    return "" if value is None else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _bandwidths(world: World) -> list[str]:
    """GB/s of each timed operation."""
    return [_figure(world.busbw_gb_per_s(op)) for op in TIMED_OPS]


def _row(name: str, trial: Trial) -> list:
    """Name, outcome, seconds and bandwidths of a world."""
    return [name, _outcome(trial), f"{trial.world.wall_s:.1f}", *_bandwidths(trial.world)]


COLUMNS = ["outcome", "seconds", *(f"{op} GB/s" for op in TIMED_OPS)]
BANDWIDTH_NOTE = "GB/s: bus bandwidth as defined by nccl-tests, at the largest size, for the slowest rank."


@titled("Checked collectives with 1, 2, ... N ranks")
def ladder_table(ladder: Ladder) -> Table:
    """One row a world size: outcome, and bandwidth if timed."""
    return Table(
        f" ({ladder.backend})", ["ranks", *COLUMNS], [_row(t.name, t) for t in ladder.rungs], BANDWIDTH_NOTE
    )


@titled("Each GPU alone")
def singles_table(singles: Singles) -> Table:
    """One row a GPU: how it passed alone."""
    return Table(
        "",
        ["GPU", *COLUMNS[:2]],
        [_row(g, t)[:3] for g, t in singles.trials.items()],
        "All GPUs ran at the same time.",
    )


@titled("Every pair of GPUs")
def pairs_table(pairs: Pairs) -> Table:
    """Heat map of all pairs: outcome, or send/recv bandwidth (GB/s) and latency, shaded relative to the best
    pair."""
    gpus = sorted({g for p in pairs.pairs for g in (p.first, p.second)})
    by_pair = {(p.first, p.second): p.trial for p in pairs.pairs}
    best = max((t.world.busbw_gb_per_s("send_recv") or 0.0 for t in by_pair.values()), default=0.0)
    return Table(
        "",
        ["", *(f"GPU {g}" for g in gpus)],
        [
            [f"GPU {a}", *(_pair_cell(by_pair.get((min(a, b), max(a, b))), best, a == b) for b in gpus)]
            for a in gpus
        ],
        "Pairs without a common GPU ran at the same time. Timed pairs show send/recv bandwidth in "
        "GB/s and the latency of 4 B in microseconds. The shade shows the share of the best pair's "
        "bandwidth.",
        drawn="grid",
    )


def _pair_cell(trial: Trial | None, best: float, same: bool) -> Cell:
    """Bandwidth and latency of a pair, or its outcome if it was not timed."""
    if trial is None:
        return Cell("" if same else "not run", "muted")
    value = trial.world.busbw_gb_per_s("send_recv")
    if not (trial.passed and value and best):
        return _outcome(trial)
    return Cell(f"{value:.1f}, {_figure(trial.world.latency_us('send_recv'))}", heat=value / best)


@titled("Which GPUs fail together")
def search_table(search: Search) -> Table:
    """Every round of the search for the GPU or link."""
    return Table(
        "",
        ["round", "GPUs that passed together", "GPUs that failed together"],
        [
            *(
                [str(n), *(_groups(r.groups, r.passed, wanted) for wanted in (True, False))]
                for n, r in enumerate(search.rounds, 1)
            ),
            *([["", Cell(search.why, "unknown"), ""]] if search.why else []),
        ],
        "The groups of one round ran at the same time. The GPUs named as faulty failed in more than "
        "one round.",
    )


def _groups(groups: list[list[int]], passed: list[bool], wanted: bool) -> Cell:
    """The groups that passed (or failed) in one round."""
    words = ["+".join(map(str, g)) for g, p in zip(groups, passed, strict=False) if p is wanted]
    return Cell("   ".join(words), ("ok" if wanted else "broken") if words else "")


BY_SIZE = "all_reduce"


@titled(f"{BY_SIZE} by size, GB/s")
def bandwidth_table(arms: Arms, links: Links) -> Table:
    """Bus bandwidth (GB/s) by size in the control and in every arm that passed, as a table and a curve."""
    trials = [arms.control, *(a.trial for a in [*arms.arms, arms.clean] if not isinstance(a, Gap))]
    passed = [t for t in trials if isinstance(t, Trial) and t.passed]
    rates = {
        # below it latency is what counts
        t.name: {s: r for s, r in t.world.busbw_by_size(BY_SIZE).items() if s >= (1 << 16)}
        for t in passed
    }
    sizes = sorted({size for by_size in rates.values() for size in by_size})
    rows = [
        [
            t.name,
            _figure(t.world.latency_us(BY_SIZE)),
            *(_figure(rates[t.name].get(s)) for s in sizes),
            _share(t.world, links),
            _narrowed(t.world),
        ]
        for t in passed
    ]
    columns = [
        "test",
        "4 B, us",
        *map(size_words, sizes),
        "share of the link's limit at the largest size",
        "instead of larger sizes",
    ]
    known = (
        "No limit is known."
        if isinstance(links, Gap)
        else "The limit is what the active NVLinks or the PCIe slot carry in each direction."
    )
    return Table(
        "",
        columns,
        rows,
        f"{BANDWIDTH_NOTE} {known} NVLS reduces in the switch and may exceed the limit.",
        Curve(
            "bytes",
            "GB/s",
            {name: list(by_size.items()) for name, by_size in rates.items() if by_size},
            {
                f"limit of {bound[0]}, {bound[1]:.0f} GB/s": bound[1]
                for bound in (limit(links, t.world.transports) for t in passed)
                if bound
            },
        ),
    )


def _share(world: World, links: Links) -> str:
    """Share of the link's limit that the world reached; empty if no limit is known."""
    bound, best = limit(links, world.transports), world.busbw_gb_per_s(BY_SIZE)
    return f"{best / bound[1]:.0%} of {bound[0]}'s {bound[1]:.0f} GB/s" if bound and best else ""


def _narrowed(world: World) -> str:
    """The smaller size that took the place of larger ones, and why; empty if all sizes ran."""
    events = (e for r in world.ranks[:1] for e in r.named("narrowed") if e.get("op") == BY_SIZE)
    return next((f"{size_words(e['to_bytes'])} ({e['why']})" for e in events), "")


@titled("One transport switched off at a time")
def arms_table(arms: Arms) -> Table:
    """One row an arm, with its outcome as the rules name it."""
    rows = [
        _arm_row("control", "", arms.control),
        *(
            _arm_row(
                a.name,
                " ".join(f"{k}={v}" for k, v in a.env.items()),
                a.trial,
                _called(outcome(a, arms.control)),
            )
            for a in arms.arms
        ),
        *_clean_rows(arms),
        *(
            [_arm_row("control again", "", arms.control_after)]
            if isinstance(arms.control_after, Trial)
            else []
        ),
    ]
    return Table(
        f" ({arms.backend})",
        ["test", "outcome", "setting", "used (NCCL's log)", *(f"{op} GB/s" for op in TIMED_OPS)],
        rows,
        "In the row 'control', the ranks ran with your unchanged environment. 'no effect' means that "
        f"NCCL's log shows the same transports with and without the setting. {BANDWIDTH_NOTE}"
        + (
            " The rows 'control' and 'control again' are the same test. Other rows that differ less show "
            "nothing: so large a difference may be chance."
            if isinstance(arms.control_after, Trial)
            else ""
        ),
    )


def _called(word: str) -> Cell:
    """The word of the rules as a cell."""
    return Cell(
        word,
        {"pass": "ok", "no effect": "muted", "no proof": "muted"}.get(
            word, "warn" if word.startswith("passed") else "broken"
        ),
    )


def _arm_row(name: str, setting: str, trial: Trial | Gap, judged: Cell | None = None) -> list:
    """The row of one arm. ``judged``: its outcome by the rules, if it differs from that of its world."""
    if isinstance(trial, Gap):
        return [name, Cell("not run", "muted"), setting, trial.detail, *[""] * len(TIMED_OPS)]
    via = trial.world.transports
    carried = (
        Cell(via.detail, "muted")
        if isinstance(via, Gap)
        else ", ".join(f"{k} ({n})" for k, n in sorted(via.items()))
    )
    return [name, judged or _outcome(trial), setting, carried, *_bandwidths(trial.world)]


def _clean_rows(arms: Arms) -> list[list]:
    """The environment without what steers NCCL, and the variables that the difference hangs on."""
    if isinstance(arms.clean, Gap):
        return [_arm_row("clean", "", arms.clean)]
    halvings = [] if isinstance(arms.guilty, Gap) else [arms.guilty]
    return [
        _arm_row("clean", f"without {', '.join(arms.clean.env)}", arms.clean.trial),
        *(
            [
                "halving",
                Cell(h.why_not or "settled", "warn"),
                ", ".join(f"{k}={v}" for k, v in h.variables.items()),
                f"{h.asked} tests among {h.among} variables",
                *[""] * len(TIMED_OPS),
            ]
            for h in halvings
        ),
    ]


def tables(ladder: Ladder, singles: Singles, pairs: Pairs, search: Search) -> list[Table]:
    """The tables of step 03, as its page shows them."""
    return [ladder_table(ladder), singles_table(singles), pairs_table(pairs), search_table(search)]


def transport_tables(arms: Arms, pairs: Pairs, links: Links) -> list[Table]:
    """The tables of step 04, as its page shows them."""
    return [arms_table(arms), pairs_table(pairs), bandwidth_table(arms, links)]
