"""Hung jobs whose dumps name no rank: one that fell silent, nothing open, or no majority."""

import dataclasses
from collections import Counter

from nccl_runbook.core.facts import counted, rank_names
from nccl_runbook.core.findings import Evidence
from nccl_runbook.hang import (
    judge_graph as graphs,
    judge_odd as graphs_judge_odd,
    judge_stacks as graphs_judge_stacks,
)
from nccl_runbook.hang.facts import Hang
from nccl_runbook.hang.judge_ended import Accused
from nccl_runbook.hang.live import judge as live
from nccl_runbook.hang.live.judge_hosts import together

CAUSE = {
    "skipped": "collective-on-some-ranks-only",
    "mismatch": "collective-mismatch",
    "order": "communicator-order",
    "unmatched": "send-recv-unmatched",
    "slow": "straggler",
    "dead": "peer-crashed",
    "stopped": "peer-stopped",
    "host-busy": "rank-busy-on-host",
    "unknown": "peer-crashed",
}

STACK_LINE = "nccl-runbook look   # beside the job while it hangs: it shows the stack of each rank"
_WAITS_LEAST = "nccl-runbook look   # beside the running job: the rank that waits least is the slow one"

STATE = (
    'ps -u "$USER" -o pid,stat,args   # on its host, while the job hangs. Not listed: it ended. T: '
    "stopped. Else: busy"
)


@dataclasses.dataclass(frozen=True)
class Told:
    """The answer. ``collective``: where the others wait, empty if nowhere; ``decides``: what to collect
    next, as a line to paste."""

    kind: str
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    sentence: str
    collective: str = ""
    frame: str = ""
    cause: str | None = None
    status: str | None = None
    evidence: tuple[Evidence, ...] = ()
    decides: str = ""


def by_look(hang: Hang, verdict: Told) -> Told:
    """The answer, or instead of an unknown one what a look or saved stacks show."""
    saved = [] if hang.dumps or hang.groups else graphs_judge_stacks.pictures(hang.stacks)
    picture = next(iter([*live.judge_looks(together(hang.looks)), *saved]), None)
    if picture is None or verdict.kind != "unknown":
        return verdict
    kind = {
        "gil-held": "host-busy",
        "unreachable": "unknown",
        "symmetric": "unknown",
        "left-over": "unknown",
    }.get(picture.kind, picture.kind)
    kind = "unknown" if kind == "healthy" and hang.dumps else kind
    culprits, victims = (
        tuple(v.rank for v in views if v.rank is not None) for views in (picture.culprits, picture.victims)
    )
    return dataclasses.replace(
        verdict,
        kind=kind,
        culprits=culprits if kind != "unknown" else (),
        victims=victims,
        sentence=f"{picture.sentence}.",
        collective=picture.collective,
        frame=picture.culprits[0].frame if picture.culprits else "",
        cause=picture.cause,
        status=picture.status or None,
        decides=picture.decides,
        evidence=(*picture.evidence, *verdict.evidence),
    )


def fell_silent(hang: Hang, graph: graphs.Graph, quiet: list[Accused]) -> Told:
    """The answer without dumps: logs of busy and dead ranks are equally silent, so no rank is named."""
    return Told(
        "unknown",
        (),
        tuple(sorted(graph.waits)),
        f"{counted(len(graph.waits), 'rank')} waited in "
        f"{graphs.places(Counter(graphs.called(hang, w) for w in graph.all()))}; "
        f"{rank_names([a.rank for a in quiet])} fell "
        "silent: dead, stopped or busy; the logs alone do not show which.",
        cause=CAUSE["dead"],
        status="possible",
        evidence=tuple(e for a in quiet[:8] for e in a.evidence),
        decides=STATE,
    )


def nobody(hang: Hang, graph: graphs.Graph) -> Told:
    """The answer if operations are open, and no rank can be named."""
    first = [w for w in graph.all() if w.first] or list(graph.all())
    perhaps = sorted({r for w in first for r in w.perhaps})
    calls = Counter(graphs.called(hang, w) for w in first)
    collective = calls.most_common(1)[0][0]
    there = graphs.places(calls)
    victims = tuple(sorted(graph.waits))
    evidence = tuple(
        Evidence(f"{counted(n, 'rank')} in {call}", "open operations") for call, n in calls.most_common(4)
    )
    unknown = Told(
        "unknown",
        (),
        victims,
        f"all members are in {there}. One snapshot cannot show progress.",
        collective,
        evidence=evidence,
        decides="take the dumps again ten seconds later, and give both folders",
    )
    if perhaps:
        return dataclasses.replace(
            unknown,
            decides=f"collect dump or log of {rank_names(perhaps)}",
            sentence=f"{counted(len(victims), 'rank')} "
            f"wait{'s' * (len(victims) == 1)} in {there}; of {rank_names(perhaps)} nothing is known, "
            "so no rank is named.",
        )
    if any(w.on for w in graph.all() if w.first):
        return Told(
            "order",
            (),
            victims,
            f"the ranks wait for each other: {there}; which one left the common order is not recorded.",
            collective,
            "",
            CAUSE["order"],
            "possible",
            evidence,
            STACK_LINE,
        )
    if not all(g.certain for g in hang.groups if any(w.group == g.name for w in first)):
        return dataclasses.replace(
            unknown,
            decides="collect the dumps, logs or stacks of all ranks",
            sentence=f"all "
            f"{counted(len(victims), 'rank')} in these files wait in {there}; they do not show whether the "
            "group has more ranks.",
        )
    logged = any(r.timeouts for r in hang.logs.ranks)
    if late := [
        w
        for w in first
        if logged or w.op.state == "timed-out" or 0 < w.op.timeout_ms <= (w.op.age_s or 0) * 1000
    ]:
        return Told(
            "symmetric",
            (),
            victims,
            f"all members wait in {there}. No rank is missing: suspect the "
            "path between them, a GPU, or the library.",
            collective,
            late[0].op.frame,
            None,
            None,
            evidence,
            "export TORCH_NCCL_ENABLE_TIMING=1   # the next dumps then show whose GPU never started it",
        )
    return unknown


def nothing_open(hang: Hang) -> Told:
    """The answer if no operation is open."""
    world = {r for g in hang.groups for r in g.ranks}
    if not (recorded := {d.rank for d in hang.dumps if d.entries}):
        damaged = [f"{f.name} {f.problem}" for f in hang.files if f.problem and f.what == "dump"]
        shown = "; ".join(damaged[:3]) or "nothing here shows how far the ranks came"
        return Told("unknown", (), (), f"{shown}.", decides=STACK_LINE)
    if world - recorded:
        lacking = rank_names(sorted(world - recorded))
        return Told(
            "unknown",
            (),
            (),
            f"nothing is open in {counted(len(recorded), 'dump')}; of {lacking} there is none.",
            decides=f"collect the dumps of {lacking}",
        )
    if any(f.problem and f.what == "dump" and f.rank not in recorded for f in hang.files):
        return Told(
            "unknown",
            (),
            (),
            "nothing is open in the usable dumps; other dumps cannot be used.",
            decides="collect the unused dumps again: the list of files gives the reason",
        )
    for rank, (words, _, _) in graphs_judge_odd.late(hang).items():
        return Told(
            "unknown",
            (),
            (),
            f"nothing is open; rank {rank} is {words}, or its clock is ahead: Gloo records no ends, which "
            "would tell.",
            decides=_WAITS_LEAST,
        )
    blind = any(d.backend == "gloo" for d in hang.dumps)
    return Told(
        "healthy",
        (),
        (),
        f"every operation in the dumps of {counted(len(recorded), 'rank')} is complete, and all ranks made "
        "the same calls." + " A slow rank cannot be detected: Gloo records no ends." * blind,
        evidence=(
            Evidence(
                f"a slow rank is reported only if it is last by {graphs.LATE_MS:.0f} ms or more in "
                "most of at least 16 "
                "operations of all ranks (Gloo, torch 2.13)",
                "dumps",
            ),
        )
        * blind,
        decides=_WAITS_LEAST * blind,
    )
