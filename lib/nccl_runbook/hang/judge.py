"""A hung job, judged by the files that it left: which rank never reached the collective, the kind of fault,
which ranks only waited, and what to collect next."""

import dataclasses
from collections import Counter

from nccl_runbook.causes.causes import fitting, in_logs, once_ended, remedies_for
from nccl_runbook.core.facts import counted, grouped, rank_names
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.hang import judge_graph as graphs, judge_odd
from nccl_runbook.hang.facts import EARLIER, UNDATED, Hang
from nccl_runbook.hang.judge_accused import RAS_AGAIN, accuse, silent, slow
from nccl_runbook.hang.judge_ended import Accused, quoted, raised
from nccl_runbook.hang.judge_silence import (
    CAUSE,
    STACK_LINE,
    STATE,
    HangVerdict,
    by_look,
    fell_silent,
    nobody,
    nothing_open,
)
from nccl_runbook.hang.ras.judge_ras import by_ras, ras_unclear
from nccl_runbook.messages.clues import ECHO
from nccl_runbook.messages.judge import is_over
from nccl_runbook.messages.printed.recognise import recognise

# after a time-out a process lives on for the heartbeat monitor's 480 s at most (torch
# 2.11): a later file is a copy
LATE_S = 600.0
_DECIDES = {"gpu-stuck": "nccl-runbook run --step 01-gpu-visibility", "unknown": STATE}
_WORST = "dead stopped mismatch order unmatched host-busy gpu-stuck skipped slow unknown".split()


def judge_hang(hang: Hang) -> HangVerdict:
    """The answer; it does not depend on the order of the files."""
    known_graph = graphs.graph(hang)
    if accused := accuse(hang, known_graph) or by_ras(hang.ras) or ([] if known_graph.waits else slow(hang)):
        verdict = _guilty(hang, known_graph, accused)
    elif len(first := raised(hang)) > 1:
        verdict = HangVerdict(
            "unknown",
            (),
            tuple(sorted(known_graph.waits)),
            f"{rank_names([e.rank for e in first if e.rank is not None])} each ended with their own "
            "error. The clocks of the hosts cannot show which rank was first.",
            cause="peer-crashed",
            status="possible",
            evidence=tuple(map(quoted, first)),
            decides="chronyc tracking   # on each of the hosts: how far the clock of that host is off",
        )
    elif not hang.dumps and (quiet := silent(hang, known_graph)):
        verdict = fell_silent(hang, known_graph, quiet)
    elif hang.ras and not known_graph.waits:
        verdict = HangVerdict("unknown", (), (), ras_unclear(hang.ras), decides=RAS_AGAIN)
    else:
        verdict = nobody(hang, known_graph) if known_graph.waits else nothing_open(hang)
    return by_look(
        hang, dataclasses.replace(verdict, evidence=(*verdict.evidence, *_attempts(hang), *_apart(hang)))
    )


def _guilty(hang: Hang, graph: graphs.Graph, accused: list[Accused]) -> HangVerdict:
    """The verdict on these ranks. The worst kind of fault leads; other ranks that wait are victims."""
    lead = min(accused, key=lambda a: (_WORST.index(a.kind), a.rank))
    ranks = tuple(a.rank for a in accused)
    waits = [w for w in graph.all() if w.rank not in ranks]
    slowed = {d.rank for d in hang.dumps} - set(ranks) if lead.kind == "slow" else set()
    victims = tuple(sorted({w.rank for w in waits} | slowed))
    calls = Counter(graphs.called(hang, w) for w in waits if not w.on or set(w.on) & set(ranks))
    collective = (
        calls.most_common(1)[0][0]
        if calls
        else (f"{lead.op.call} {lead.op.seq} of {graphs.group_name(hang, lead.group)}" if lead.op else "")
    )
    # the sentence about the lead may name several calls: the last one decides the group
    named = [w for w in waits if graphs.called(hang, w) in lead.says]
    missed = max(named, key=lambda w: lead.says.index(graphs.called(hang, w)), default=lead)
    uneven = judge_odd.uneven(hang, lead.rank)
    # a wrong call is wrong at any time
    is_wrong_call = any(g.differences for g in hang.groups if g.name == lead.group)
    undated = [] if is_wrong_call else _undated(hang, lead, waits)
    waiting_there = len({w.rank for w in waits if graphs.called(hang, w) == collective}) or len(victims)
    clauses = [
        *(f"rank {a.rank} {a.says}" for a in accused[:3]),
        *([f"and {len(accused) - 3} more ranks"] if len(accused) > 3 else []),
    ]
    if victims and collective:
        # the number of a wrong call stands behind another name
        place = "there" if f" {collective.partition(' ')[2]}" in lead.says else f"in {collective}"
        others = len(victims) - waiting_there
        clauses.append(
            f"{counted(waiting_there, 'rank')} wait{'s' if waiting_there == 1 else ''} {place}"
            + (f", and {others} more ranks wait elsewhere" if others else "")
        )
    counts = ", ".join(f"rank {c.rank} had {c.number} minibatches" for c in uneven).capitalize()
    witnesses = [
        *(e for a in accused[:8] for e in a.evidence),
        *(Evidence(f"rank {c.rank}: {c.line.text}", f"{c.line.file} line {c.line.line}") for c in uneven),
    ]
    status = "established" if lead.kind in ("mismatch", "stopped", "order") else "likely"
    # in the records, a call that was left out and a call that was made too early look the same
    return HangVerdict(
        kind="skipped" if uneven and lead.kind == "order" else lead.kind,
        culprits=ranks,
        victims=victims,
        sentence=f"{counts}{': ' if uneven else ''}{'; '.join(clauses)}.",
        collective=collective,
        frame=lead.frame,
        cause=_cause(hang, lead),
        status="possible" if undated or lead.doubtful else status,
        evidence=tuple(dict.fromkeys((*witnesses[:1], *undated, *witnesses[1:]))),
        decides=_decides(hang, lead),
        group=missed.group,
    )


def _undated(hang: Hang, lead: Accused, waits: list[graphs.Wait]) -> list[Evidence]:
    """What a reader must know if nothing shows that the job stood still: there was no timeout, and the files
    have no time, or the time at which they were copied."""
    stood = any(
        w.op.state == "timed-out"
        or (w.op.age_s is not None and w.op.age_s <= w.op.timeout_ms / 1000 + LATE_S)
        for w in waits
    )
    by_dumps = lead.kind in ("skipped", "unmatched", "gpu-stuck") or (
        lead.kind == "host-busy" and not any(s.rank == lead.rank for s in hang.stacks)
    )
    if not by_dumps or stood or not waits or any(r.timeouts for r in hang.logs.ranks):
        return []
    return [
        Evidence(
            "the files do not show when the dumps were written, because the files are copies or come "
            "from an archive. If the job was still running, a healthy rank that is one step behind "
            "looks like a rank that never reached the call. To decide, take dumps again ten seconds later",
            UNDATED,
        )
    ]


def _attempts(hang: Hang) -> list[Evidence]:
    """Which attempt of the job the answer is about."""
    left_out = [f for f in hang.files if f.problem.startswith(EARLIER)]
    words = f"; left out: {counted(len(left_out), 'file')} of earlier attempts" if left_out else ""
    return (
        [Evidence(f"the ranks started more than once; only the last attempt is judged{words}", "files")]
        if left_out or hang.logs.attempts > 1
        else []
    )


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
                f"the clocks of the hosts differ: {words} (+- {error:.2f} s, measured with operations "
                "that end on all ranks at the same time). Times are shifted to one clock. The order "
                "of events that are closer than this error is unknown",
                "dumps",
            )
        ]
        if words
        else []
    )


def _cause(hang: Hang, lead: Accused) -> str | None:
    if lead.kind in ("dead", "unknown"):
        known = recognise({lead.kind: "\n".join(e.text for e in lead.evidence)})
        if known and known.status != "possible" and not ECHO.search(known.evidence[0].text):
            return known.cause
    if lead.kind in ("skipped", "host-busy", "order", "dead", "unknown") and judge_odd.uneven(
        hang, lead.rank
    ):
        return "uneven-minibatches"
    return CAUSE.get(lead.kind)


def _decides(hang: Hang, lead: Accused) -> str:
    if hang.ras and lead.doubtful and lead.kind != "unknown":
        return RAS_AGAIN
    if lead.kind in _DECIDES:
        return _DECIDES[lead.kind]
    if lead.kind == "dead":
        return _in_its_log(
            fitting(_cause(hang, lead) or CAUSE["dead"], lead.evidence[0].text).decides[2], lead.evidence
        )
    known = lead.kind in ("mismatch", "slow") or lead.in_call or any(s.rank == lead.rank for s in hang.stacks)
    return f"open {lead.frame.rpartition(', ')[2]}" if known and lead.frame else STACK_LINE


def _in_its_log(line: str, evidence: tuple[Evidence, ...]) -> str:
    """The line with the log that the first evidence names in the place of LOG."""
    log = evidence[0].source.rpartition(" line ")[0] if evidence else ""
    return in_logs(line, [log] if log else [])


# --- findings


def findings(hang: Hang) -> list[Finding]:
    """The answer as findings of a step; at least one."""
    if not hang.files:
        return [
            Finding(
                "no-dump-named",
                Severity.SKIPPED,
                "no dump was given. Name dumps, logs or stacks with -p hang_path FOLDER",
            )
        ]
    return [
        hang_finding(judge_hang(hang), hang.logs.launcher, ended=is_over(hang.logs)),
        *(
            Finding("dump-not-used", Severity.NOTE, f"{f.name}: {f.problem}", (Evidence(f.problem, f.name),))
            for f in hang.files
            if f.problem and f.what == "dump"
        ),
    ]


def hang_finding(
    verdict: HangVerdict, launcher: str = "", still: bool = False, now: bool = False, ended: bool = False
) -> Finding:
    """The finding that names the rank that did not come. A past snapshot never proves health. A rank that
    only possibly did not come is a warning, since the job may have been moving, unless it was seen
    ``still``. ``now``: by a look just made, so that its pid is still that of the rank; ``ended``: the job
    has ended."""
    severity = {"healthy": Severity.OK, "unknown": Severity.UNKNOWN, "slow": Severity.WARN}.get(
        verdict.kind,
        Severity.WARN if verdict.status == "possible" and verdict.culprits and not still else Severity.BROKEN,
    )
    texts = [e.text for e in verdict.evidence]
    remedy = [
        dataclasses.replace(
            r, lines=tuple(verdict.at_fault(_in_its_log(line, verdict.evidence), now) for line in r.lines)
        )
        for r in (remedies_for(verdict.cause, verdict.status, texts, launcher) if verdict.cause else ())
    ]
    if ended:
        remedy = [*once_ended(remedy)]
    if verdict.cause == "uneven-minibatches":
        remedy.insert(
            0,
            Remedy(
                "you",
                "Compare the minibatch counts of all ranks before the first step. If the counts "
                "differ, this guard stops the job and prints them.",
                (
                    "from nccl_guards import check_minibatches   # one file to copy: lib/nccl_guards.py",
                    "check_minibatches(minibatches=(len(responses), world_size))   "
                    "# for 3 responses and 4 ranks, the message shows 3 // 4 = 0",
                ),
            ),
        )
    if severity in (Severity.BROKEN, Severity.WARN) and not remedy:
        remedy = [
            Remedy("you", "Collect this evidence next:", (verdict.decides,))
            if verdict.decides
            else Remedy(
                "you",
                "Read the code around the line where the rank is. The rank is too late for the timeout, or "
                "took a branch without the collective. All ranks of a group must make the same calls.",
            )
        ]
    decides = (
        (Evidence(f"decides: {verdict.decides}", "next"),)
        if verdict.decides and not any(verdict.decides in r.lines for r in remedy)
        else ()
    )
    return Finding(
        "hang-told",
        severity,
        verdict.sentence,
        (*verdict.evidence, *decides),
        tuple(remedy),
        cause=verdict.cause,
        status=verdict.status,
    )
