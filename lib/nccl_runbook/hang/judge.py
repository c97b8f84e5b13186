"""A hung job from what it left: which rank did not come, of what kind the fault is, who only waited,
and what to collect next."""

import dataclasses
import re
import shlex
from collections import Counter

from nccl_runbook.causes.causes import fitting, recognise, usual
from nccl_runbook.core.facts import counted, grouped, rank_names
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.hang import judge_graph as graphs
from nccl_runbook.hang.facts import EARLIER, Hang
from nccl_runbook.hang.judge_accused import (
    RAS_AGAIN,
    Accused,
    accuse,
    by_ras,
    quoted,
    raised,
    ras_unclear,
    silent,
    slow,
)
from nccl_runbook.hang.live import judge as live
from nccl_runbook.hang.live.judge_hosts import together
from nccl_runbook.messages.clues import ECHO

# after a time-out a process lives on for the heartbeat monitor's 480 s at most (torch
# 2.11): a later file is a copy
LATE_S = 600.0
_CAUSE = {
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
_STACK_LINE = "nccl-runbook look   # beside the job while it hangs: it shows the stack of each rank"
_WAITS_LEAST = "nccl-runbook look   # beside the running job: the rank that waits least is the slow one"
_STATE = (
    'ps -u "$USER" -o pid,stat,args   # on its host, while the job hangs. Not listed: it ended. T: '
    "stopped. Else: busy"
)
_DECIDES = {"gpu-stuck": "nccl-runbook run --step 01-gpu-visibility", "unknown": _STATE}
_WORST = (
    "dead",
    "stopped",
    "mismatch",
    "order",
    "unmatched",
    "host-busy",
    "gpu-stuck",
    "skipped",
    "slow",
    "unknown",
)


@dataclasses.dataclass(frozen=True)
class Told:
    """The answer. ``collective``: where the others wait, "" for nowhere; ``decides``: what to collect
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


def judge(hang: Hang) -> Told:
    """The answer, the same for any order of files."""
    found = graphs.graph(hang)
    if accused := accuse(hang, found) or by_ras(hang.ras) or ([] if found.waits else slow(hang)):
        told = _guilty(hang, found, accused)
    elif len(first := raised(hang)) > 1:
        told = Told(
            "unknown",
            (),
            tuple(sorted(found.waits)),
            f"{rank_names([e.rank for e in first if e.rank is not None])} ended with an "
            "error of their own each, too close together for their clocks to say which was first.",
            cause="peer-crashed",
            status="possible",
            evidence=tuple(map(quoted, first)),
            decides="chronyc tracking   # on both hosts: how far its clock is off",
        )
    elif not hang.dumps and (quiet := silent(hang, found)):
        told = _fell_silent(hang, found, quiet)
    elif hang.ras and not found.waits:
        told = Told("unknown", (), (), ras_unclear(hang.ras), decides=RAS_AGAIN)
    else:
        told = _nobody(hang, found) if found.waits else _nothing_open(hang)
    return by_look(
        hang, dataclasses.replace(told, evidence=(*told.evidence, *_attempts(hang), *_apart(hang)))
    )


def by_look(hang: Hang, told: Told) -> Told:
    """The answer, or in place of one that is unknown what a look or saved stacks show, under the
    nearest name that a kind has."""
    saved = [] if hang.dumps or hang.groups else graphs.pictures(hang.stacks)
    picture = next(iter([*live.judge(together(hang.looks)), *saved]), None)
    if picture is None or told.kind != "unknown":
        return told
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
        told,
        kind=kind,
        culprits=culprits if kind != "unknown" else (),
        victims=victims,
        sentence=f"{picture.sentence}.",
        collective=picture.collective,
        frame=picture.culprits[0].frame if picture.culprits else "",
        cause=picture.cause,
        status=picture.status or None,
        decides=picture.decides,
        evidence=(*picture.evidence, *told.evidence),
    )


def _fell_silent(hang: Hang, found: graphs.Graph, quiet: list[Accused]) -> Told:
    """Without dumps: the log of a rank that is busy is as silent as that of a dead
    one, so no rank is named."""
    return Told(
        "unknown",
        (),
        tuple(sorted(found.waits)),
        f"{counted(len(found.waits), 'rank')} waited in "
        f"{graphs.places(Counter(graphs.called(hang, w) for w in found.all()))}; "
        f"{rank_names([a.rank for a in quiet])} fell "
        "silent: dead, stopped or busy; the logs alone do not show which.",
        cause=_CAUSE["dead"],
        status="possible",
        evidence=tuple(e for a in quiet[:8] for e in a.evidence),
        decides=_STATE,
    )


def _guilty(hang: Hang, found: graphs.Graph, accused: list[Accused]) -> Told:
    lead = min(accused, key=lambda a: (_WORST.index(a.kind), a.rank))
    ranks = tuple(a.rank for a in accused)
    waits = [w for w in found.all() if w.rank not in ranks]
    victims = tuple(
        sorted(
            {w.rank for w in waits}
            | ({d.rank for d in hang.dumps} - set(ranks) if lead.kind == "slow" else set())
        )
    )
    where = Counter(graphs.called(hang, w) for w in waits if set(w.on) & set(ranks) or not w.on).most_common(
        1
    )
    collective = (
        where[0][0]
        if where
        else f"{lead.op.call} {lead.op.seq} of {graphs.group_name(hang, lead.group)}"
        if lead.op
        else ""
    )
    uneven, undated = graphs.uneven(hang, lead.rank), _undated(hang, lead, waits)
    behind = undated and not any(
        g.differences for g in hang.groups if g.name == lead.group
    )  # a wrong call is wrong at any time
    who = [
        *(f"rank {a.rank} {a.says}" for a in accused[:3]),
        *[f"and {len(accused) - 3} more ranks"] * (len(accused) > 3),
        *[
            f"{counted(len(victims), 'rank')} wait{'s' * (len(victims) == 1)} "
            f"{'there' if collective in lead.says else f'in {collective}'}"
        ]
        * bool(victims and collective),
    ]
    counts = ", ".join(f"rank {c.rank} had {c.number} minibatches" for c in uneven).capitalize()
    seen = [
        *(e for a in accused[:8] for e in a.evidence),
        *(Evidence(f"rank {c.rank}: {c.line.text}", f"{c.line.file} line {c.line.line}") for c in uneven),
    ]
    # in the records a call left out and one made too early look the same
    return Told(
        "skipped" if uneven and lead.kind == "order" else lead.kind,
        ranks,
        victims,
        f"{counts}{': ' * bool(uneven)}{'; '.join(who)}.",
        collective,
        lead.frame,
        _cause(hang, lead),
        "possible"
        if behind or lead.doubtful
        else "established"
        if lead.kind in ("mismatch", "stopped", "order")
        else "likely",
        tuple(dict.fromkeys((*seen[:1], *undated, *seen[1:]))),
        _decides(hang, lead),
    )


def _undated(hang: Hang, lead: Accused, waits: list[graphs.Wait]) -> list[Evidence]:
    """What a reader must know if nothing shows that the job stood still: no time-out, and the files have
    no time, or that of a copy."""
    stood = any(
        w.op.state == "timed-out" or w.op.age_s is not None and w.op.age_s <= w.op.timeout_ms / 1000 + LATE_S
        for w in waits
    )
    by_dumps = {"skipped", "unmatched", "gpu-stuck", "host-busy"} - {
        "host-busy" for s in hang.stacks if s.rank == lead.rank
    }
    if lead.kind not in by_dumps or stood or not waits or any(r.timeouts for r in hang.logs.ranks):
        return []
    return [
        Evidence(
            "nothing here shows when the dumps were written (copies, or an archive): "
            "if the job was still moving, a rank one step "
            "behind looks the same. A second set of dumps, taken ten seconds later, decides",
            "times of the files",
        )
    ]


def _nobody(hang: Hang, found: graphs.Graph) -> Told:
    """Something is open, and no rank can be named."""
    first = [w for w in found.all() if w.first] or list(found.all())
    perhaps = sorted({r for w in first for r in w.perhaps})
    calls = Counter(graphs.called(hang, w) for w in first)
    collective = calls.most_common(1)[0][0]
    there = graphs.places(calls)
    victims = tuple(sorted(found.waits))
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
    if any(w.on for w in found.all() if w.first):
        return Told(
            "order",
            (),
            victims,
            f"the ranks wait for each other: {there}; which one left the common order is not recorded.",
            collective,
            "",
            _CAUSE["order"],
            "possible",
            evidence,
            _STACK_LINE,
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


def _attempts(hang: Hang) -> list[Evidence]:
    """Which attempt of the job the answer is about."""
    left_out = [f for f in hang.files if f.problem.startswith(EARLIER)]
    words = (
        f"; {counted(len(left_out), 'file')} of earlier ones {'was' if len(left_out) == 1 else 'were'} left "
        "out" * bool(left_out)
    )
    return [
        Evidence(f"the ranks were started more than once: the last attempt is judged{words}", "files")
    ] * bool(left_out or hang.logs.attempts > 1)


def _apart(hang: Hang) -> list[Evidence]:
    """How far the clocks are apart, by whole seconds."""
    ahead = grouped((round(c.offset_s), int(c.clock)) for c in hang.clocks)
    words = "; ".join(
        f"{rank_names(sorted(ranks))} {seconds:+d} s" for seconds, ranks in sorted(ahead.items()) if seconds
    )
    error = max((c.error_s for c in hang.clocks), default=0.0)
    return (
        [
            Evidence(
                f"the clocks of hosts differ: {words} (+- {error:.2f} s, measured by operations that "
                "end everywhere at "
                "once). Times are shifted to one clock. Events closer than that error have no known order",
                "dumps",
            )
        ]
        if words
        else []
    )


def _nothing_open(hang: Hang) -> Told:
    """No operation is open anywhere."""
    world = {r for g in hang.groups for r in g.ranks}
    if not (seen := {d.rank for d in hang.dumps if d.entries}):
        return Told("unknown", (), (), "nothing here shows how far the ranks came.", decides=_STACK_LINE)
    if world - seen:
        lacking = rank_names(sorted(world - seen))
        return Told(
            "unknown",
            (),
            (),
            f"nothing is open in {counted(len(seen), 'dump')}; of {lacking} there is none.",
            decides=f"collect the dumps of {lacking}",
        )
    if any(f.problem and f.what == "dump" and f.rank not in seen for f in hang.files):
        return Told(
            "unknown",
            (),
            (),
            "nothing is open in the usable dumps; other dumps cannot be used.",
            decides="collect the unused dumps again: the list of files gives the reason",
        )
    for rank, (words, _, _) in graphs.late(hang).items():
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
        f"every operation in the dumps of {counted(len(seen), 'rank')} is complete, and all ranks made "
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


def _cause(hang: Hang, lead: Accused) -> str | None:
    if lead.kind in ("dead", "unknown"):
        known = recognise(e.text for e in lead.evidence)
        if known and not ECHO.search(known[1]):
            return known[0].id
    if lead.kind in ("skipped", "host-busy", "order", "dead", "unknown") and graphs.uneven(hang, lead.rank):
        return "uneven-minibatches"
    return _CAUSE.get(lead.kind)


def _decides(hang: Hang, lead: Accused) -> str:
    if hang.ras and lead.doubtful and lead.kind != "unknown":
        return RAS_AGAIN
    if lead.kind in _DECIDES:
        return _DECIDES[lead.kind]
    if lead.kind == "dead":
        return _in_its_log(
            fitting(_cause(hang, lead) or _CAUSE["dead"], lead.evidence[0].text).decides[2], lead.evidence
        )
    known = lead.kind in ("mismatch", "slow") or any(s.rank == lead.rank for s in hang.stacks)
    return f"open {lead.frame.rpartition(', ')[2]}" if known and lead.frame else _STACK_LINE


def _in_its_log(line: str, seen: tuple[Evidence, ...]) -> str:
    """The line with the log that the first evidence names in the place of LOG."""
    log = seen[0].source.rpartition(" line ")[0] if seen else ""
    return re.sub(r"\bLOGS?\b", lambda _: shlex.quote(log), line) if log else line


# --- findings


def findings(hang: Hang) -> list[Finding]:
    """The same as findings of a step. At least one."""
    if not hang.files:
        return [
            Finding(
                "no-dump-named",
                Severity.SKIPPED,
                "no dump was given: name dumps, logs or stacks with -p hang_path FOLDER",
            )
        ]
    return [
        hang_told(judge(hang), hang.logs.launcher),
        *(
            Finding("dump-not-used", Severity.NOTE, f"{f.name}: {f.problem}", (Evidence(f.problem, f.name),))
            for f in hang.files
            if f.problem and f.what == "dump"
        ),
    ]


def hang_told(told: Told, launcher: str = "") -> Finding:
    """Who did not come. A picture of the past proves no health: without an open operation it is no more than
    that. A rank that only possibly did not come is a warning: the job may have been moving."""
    severity = {"healthy": Severity.OK, "unknown": Severity.UNKNOWN, "slow": Severity.WARN}.get(
        told.kind, Severity.WARN if told.status == "possible" and told.culprits else Severity.BROKEN
    )
    known = usual(told.cause, told.status, [e.text for e in told.evidence], launcher) if told.cause else ()
    remedy = [
        dataclasses.replace(r, lines=tuple(_in_its_log(line, told.evidence) for line in r.lines))
        for r in known
    ]
    if told.cause == "uneven-minibatches":
        remedy.insert(
            0,
            Remedy(
                "you",
                "Compare the counts of all ranks before the first step: this guard stops the job there "
                "and prints the counts.",
                (
                    "from nccl_guards import check_minibatches   # one file to copy: lib/nccl_guards.py",
                    "check_minibatches(minibatches=(len(responses), world_size))   "
                    "# its message shows 3 // 4 = 0",
                ),
            ),
        )
    if severity in (Severity.BROKEN, Severity.WARN) and not remedy:
        remedy = [Remedy("you", "Run the test that decides.", (told.decides,) if told.decides else ())]
    decides = (Evidence(f"decides: {told.decides}", "next"),) * bool(
        told.decides and not any(told.decides in r.lines for r in remedy)
    )
    return Finding(
        "hang-told",
        severity,
        told.sentence,
        (*told.evidence, *decides),
        tuple(remedy),
        told.cause,
        told.status,
    )
