"""Hung jobs whose dumps name no rank: one that fell silent, nothing open, or no majority."""

import dataclasses
import functools
import re
from collections import Counter

from nccl_runbook.core.facts import counted, grouped, rank_names
from nccl_runbook.core.findings import Evidence
from nccl_runbook.hang import (
    judge_graph as graphs,
    judge_odd,
    judge_stacks as graphs_judge_stacks,
)
from nccl_runbook.hang.facts import Hang
from nccl_runbook.hang.judge_ended import Accused
from nccl_runbook.hang.live import judge as live
from nccl_runbook.hang.live.judge_hosts import together
from nccl_runbook.hang.live.ranks.judge_picture import Picture
from nccl_runbook.messages.clues import AT_WORK
from nccl_runbook.messages.facts import NOT_COUNTED
from nccl_runbook.messages.judge import is_over

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

STACK_LINE = "nccl-runbook look   # on the host of the hung job; shows the stack of each rank"
_WAITS_LEAST = (
    "nccl-runbook look   # on the host of the running job; the rank that waits least is the slow rank"
)
MOST_NAMED = 3  # files whose problem the first sentence names
STATE = (
    'ps -u "$USER" -o pid,stat,args   # on the rank\'s host, while the job hangs. Not listed: ended. '
    "State T: stopped. Otherwise: busy"
)


@dataclasses.dataclass(frozen=True)
class HangVerdict:
    """The answer. ``collective``: where the others wait, empty if nowhere; ``group``: the
    process group in which the first rank is missing, empty if unknown; ``decides``: what to collect next, as
    a line to paste; ``pid``: of the one rank that did not come, 0 if unknown; ``host``: that rank's, empty if
    all ranks that were seen are on one host."""

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
    pid: int = 0
    host: str = ""
    group: str = ""

    def at_fault(self, line: str, now: bool) -> str:
        """A line about PID, with the host of the rank at fault, and with its pid if it was seen just ``now``:
        later another process may have that number. A line about EACH_PID stays as it is."""
        if not self.pid or not re.search(r"\bPID\b", line):
            return line
        line = re.sub(r"\bPID\b", str(self.pid), line) if now else line
        return f"{line}   # on {self.host}" if self.host else line


def by_look(hang: Hang, verdict: HangVerdict) -> HangVerdict:
    """The answer, or in place of one that is unknown what a look or saved stacks show."""
    saved = [] if hang.dumps or hang.groups else graphs_judge_stacks.pictures(hang.stacks)
    looked = live.with_command(live.judge_looks(together(hang.looks)), None)
    picture = next(iter([*looked, *saved]), None)
    if verdict.decides in (STATE, STACK_LINE, _WAITS_LEAST) and is_over(hang.logs):
        # in place of what only a job that has not ended can show
        verdict = dataclasses.replace(
            verdict,
            decides="nccl-runbook watch --html hang.html   # beside the next run, on each node",
        )
    if picture is None or verdict.kind != "unknown":
        return verdict
    shown = of_picture(picture)
    return dataclasses.replace(
        shown,
        kind="unknown" if shown.kind == "healthy" and hang.dumps else shown.kind,
        evidence=(*shown.evidence, *verdict.evidence),
    )


def of_picture(picture: Picture) -> HangVerdict:
    """What a look shows of a job. That all wait in one place is no proof that they hang."""
    kind = "unknown" if picture.kind == "symmetric" else picture.kind
    culprits, victims = (
        tuple(v.rank for v in views if v.rank is not None) for views in (picture.culprits, picture.victims)
    )
    one = picture.culprits[0] if len(picture.culprits) == 1 else None
    several_hosts = len({v.host for v in picture.ranks}) > 1
    return HangVerdict(
        kind=kind,
        culprits=culprits if kind != "unknown" else (),
        victims=victims,
        sentence=f"{picture.sentence}.",
        collective=picture.collective,
        frame=picture.culprits[0].frame if picture.culprits else "",
        cause=picture.cause,
        status=picture.status or None,
        evidence=tuple(picture.evidence),
        decides=picture.decides,
        pid=(one.pid or 0) if one else 0,
        host="".join(filter(str.isprintable, one.host)) if one and several_hosts else "",
    )


def fell_silent(hang: Hang, graph: graphs.Graph, quiet: list[Accused]) -> HangVerdict:
    """Without dumps: the log of a rank that is busy is as silent as that of a dead
    one, so no rank is named. The first guess is that of a log alone."""
    silent = {a.rank for a in quiet}
    last = [r.last.text for r in hang.logs.ranks if r.rank in silent and r.last]
    return HangVerdict(
        "unknown",
        (),
        tuple(sorted(graph.waits)),
        f"{counted(len(graph.waits), 'rank')} waited in "
        f"{graphs.places(Counter(graphs.called(hang, w) for w in graph.all()))}, while "
        f"{rank_names([a.rank for a in quiet])} printed nothing more. The logs alone do not show "
        "whether such a rank was dead, stopped or busy.",
        cause=CAUSE["dead" if last and not any(map(AT_WORK.search, last)) else "host-busy"],
        status="possible",
        evidence=tuple(e for a in quiet[:8] for e in a.evidence),
        decides=STATE,
    )


def nobody(hang: Hang, graph: graphs.Graph) -> HangVerdict:
    """The answer if operations are open, and no rank can be named."""
    first = [w for w in graph.all() if w.first] or list(graph.all())
    callers = grouped((graphs.called(hang, w), w.rank) for w in first)
    calls = Counter({call: len(ranks) for call, ranks in callers.items()})
    there, ranks = graphs.places(calls), counted(len(graph.waits), "rank")
    waiting = functools.partial(
        HangVerdict,
        culprits=(),
        victims=tuple(sorted(graph.waits)),
        collective=calls.most_common(1)[0][0],
        evidence=tuple(
            Evidence(f"{rank_names(sorted(callers[call]))} in {call}", "open operations")
            for call, _ in calls.most_common(4)
        ),
    )
    # other names may mean several groups
    if (
        len({(w.group, w.op.seq) for w in first}) == 1 < len(calls)
        and first[0].group in ("default_pg", "0")
        and not any(w.op.call.upper().startswith(NOT_COUNTED) for w in first)
    ):
        return waiting(
            "mismatch",
            sentence=f"as call {first[0].op.seq} of {graphs.group_name(hang, first[0].group)}, "
            + " and ".join(f"{rank_names(sorted(w))} called {call.split()[0]}" for call, w in callers.items())
            + ". The files do not show which rank is wrong.",
            cause=CAUSE["mismatch"],
            status="likely",
            decides=STACK_LINE,
        )
    perhaps = sorted({r for w in first for r in w.perhaps} - graph.waits.keys())
    if perhaps:
        return waiting(
            "unknown",
            sentence=f"{ranks} wait{'s' if len(graph.waits) == 1 else ''} in {there}. These files show "
            f"nothing about {rank_names(perhaps)}, so no rank is named.",
            decides=f"nccl-runbook hang FOLDER   # with the dump or log of {rank_names(perhaps)}, too",
        )
    if any(w.on for w in graph.all() if w.first):
        return waiting(
            "order",
            sentence=f"the ranks wait for each other: {there}. The files do not show which rank called the "
            "collectives in a different order from the other ranks.",
            cause=CAUSE["order"],
            status="possible",
            decides=STACK_LINE,
        )
    if not all(g.certain for g in hang.groups if any(w.group == g.name for w in first)):
        return waiting(
            "unknown",
            sentence=f"every rank in these files waits in {there}. The files do not show whether the group "
            "has more ranks.",
            decides="nccl-runbook hang FOLDER   # with the dumps, logs or stacks of all ranks",
        )
    logged, is_gloo = any(r.timeouts for r in hang.logs.ranks), {d.backend for d in hang.dumps} == {"gloo"}
    late = [
        w.op.frame
        for w in first
        if logged or w.op.state == "timed-out" or 0 < w.op.timeout_ms <= (w.op.age_s or 0) * 1000
    ]
    if not late:
        return waiting(
            "unknown",
            sentence=f"all ranks of the group are in {there}. One snapshot cannot show whether the job "
            "still makes progress.",
            decides="nccl-runbook hang FIRST SECOND   # SECOND: dumps that were taken ten seconds later",
        )
    return waiting(
        "symmetric",
        sentence=(
            f"all ranks of the group wait in {there}. No rank is missing. Suspect the path between the ranks"
        )
        + (", or the library." if is_gloo else ", a GPU, or the library."),
        frame=late[0],
        decides=STACK_LINE
        if is_gloo
        else (
            "export TORCH_NCCL_ENABLE_TIMING=1   # the next dumps then show which GPU never started "
            "the collective"
        ),
    )


def _why_nothing(hang: Hang) -> str:
    """Why these files say nothing about a rank: what is wrong with the first ones, or that none shows it."""
    unused = [f for f in hang.files if f.problem]
    silent = (
        "these files do not show how far the ranks came. To find errors in them, use `nccl-runbook diagnose`"
    )
    return "; ".join(
        [
            *([silent] if len(unused) < len(hang.files) else []),
            *(
                f"{f.name}{':' if not f.problem.startswith('is ') else ''} {f.problem}"
                for f in unused[:MOST_NAMED]
            ),
        ]
    )


def nothing_open(hang: Hang) -> HangVerdict:
    """The answer if no operation is open."""
    recorded = {d.rank for d in hang.dumps if d.entries}
    damaged = [f for f in hang.files if f.problem and f.what == "dump"]
    if not recorded:
        return HangVerdict("unknown", (), (), f"{_why_nothing(hang)}.", decides=STACK_LINE)
    lacking = sorted({r for g in hang.groups for r in g.ranks} - recorded)
    if lacking:
        return HangVerdict(
            "unknown",
            (),
            (),
            f"there is no unfinished operation in {counted(len(recorded), 'dump')}, and no dump of "
            f"{rank_names(lacking)}.",
            decides=f"nccl-runbook hang FOLDER   # with the dumps of {rank_names(lacking)}, too",
        )
    if any(f.rank not in recorded for f in damaged):
        return HangVerdict(
            "unknown",
            (),
            (),
            "the usable dumps show no unfinished operation, but other dumps cannot be used.",
            decides="nccl-runbook hang FOLDER   # after you copied the unreadable dumps again",
        )
    late = "; ".join(f"rank {rank} is {words}" for rank, (words, _, _) in judge_odd.late(hang).items())
    if late:
        return HangVerdict(
            "unknown",
            (),
            (),
            f"the dumps show no unfinished operation, but {late}, unless the clock of this rank is "
            "ahead. Gloo does not record when an operation ends.",
            decides=_WAITS_LEAST,
        )
    blind = any(d.backend == "gloo" for d in hang.dumps)
    return HangVerdict(
        "healthy",
        (),
        (),
        f"every operation in the dumps of {counted(len(recorded), 'rank')} is complete, and all ranks made "
        "the same calls."
        + (
            " A slow rank cannot be detected, because Gloo does not record when an operation ends."
            if blind
            else ""
        ),
        evidence=(
            Evidence(
                f"a slow rank is reported only if it arrives last, by {graphs.LATE_MS:.0f} ms or more, "
                "in most of at least 16 operations of all ranks (measured with Gloo and torch 2.13)",
                "dumps",
            ),
        )
        if blind
        else (),
        decides=_WAITS_LEAST if blind else "",
    )
