"""What broke first, from what the job printed: hypotheses, best first, and the answer for terminal, JSON,
page and notebook. No test was run; a log alone proves no health."""

import dataclasses
import re
from collections.abc import Sequence

from nccl_runbook.causes.causes import Advice, Rows, fitting, remedies_for
from nccl_runbook.core.facts import bus_of_message, grouped
from nccl_runbook.core.findings import STATUSES, UNDECIDED, Evidence, Finding, Severity
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.logs.kind import DUMP_NAME
from nccl_runbook.messages.clues import ENDED, SLOW, compiled, says, works
from nccl_runbook.messages.excerpt import TRACEBACK
from nccl_runbook.messages.facts import CONTEXT, OWN_FRAME, Logs
from nccl_runbook.messages.judge import (
    Indication,
    current,
    failed_line,
    has_ended,
    is_same_attempt,
    surely_after,
)
from nccl_runbook.messages.lines import EXPRESSIONS
from nccl_runbook.triage.hypotheses.judge_attempts import pointers
from nccl_runbook.triage.hypotheses.judge_hypothesis import (
    Answer,
    Decides,
    Hypothesis,
    after_end,
    carried_over,
    not_done,
    platform,
)
from nccl_runbook.triage.hypotheses.judge_undecided import (
    check_first,
    findings_beside,
    is_fault,
    log_points_to_cause,
    nothing_shown,
    result_code,
    undecided,
)
from nccl_runbook.triage.hypotheses.judge_weights import (
    MOST,
    NVIDIA_ONLY,
    fits,
    follows_failure,
    weighed,
)
from nccl_runbook.triage.ranks import (
    judge_experiments,
)

_ONLY_SLOW = SLOW - {"communicator-recreated"}  # which also takes memory
# causes that contain the end of a job, or that it never started
_STOPS = ENDED | {"peer-crashed", "scheduler-refused", "program-not-started"}
# a line that torch, Python, a logger or NCCL prints without an error
_WARNING = re.compile(r"\[?W\d{3,4} \d\d:|WARNING\b|\S{1,200} \w{1,40}Warning: |[^\n]{0,120}NCCL INFO ")
_WARNINGS: Rows = (  # a result code of NCCL names no reason
    (
        "your launcher",
        "Run the job again with NCCL's warnings enabled. On the rank that fails first, the first NCCL "
        "WARN line names the reason:",
        ("export NCCL_DEBUG=WARN",),
    ),
)


def judge(logs: Logs) -> list[Hypothesis]:
    """Hypotheses, best first; empty if nothing is known. `benign` alone means that only harmless messages
    were seen."""
    ruled_out = judge_experiments.ruled_out(logs.context)
    indications = [weighed(p, logs) for p in pointers(logs)]
    not_ruled_out = [p for p in indications if p.status == "established" or p.cause not in ruled_out]
    # what had failed comes first
    in_order = sorted(
        [*not_ruled_out, *judge_experiments.experiments(logs.context)],
        key=lambda p: (follows_failure(p, logs), p.left_behind, p.place),
    )
    left_behind = {p.cause for p in in_order} - {p.cause for p in in_order if not p.left_behind}
    by_cause = grouped((p.cause, p) for p in in_order)
    hypotheses = [_hypothesis(cause, own, logs) for cause, own in by_cause.items()]
    ranked = _without_noise(sorted(hypotheses, key=lambda h: _order(h, logs, h.cause in left_behind)), logs)
    if platform(logs):
        ranked = [carried_over(h) for h in ranked if h.cause not in NVIDIA_ONLY]
    # keep the first ones; from the rest keep what may belong to another job in these files: what is sure, and
    # the first of each file
    first_of_file = {h.evidence[0].file: h for h in reversed(ranked)}
    return [
        h
        for at, h in enumerate(ranked)
        if at < MOST or h.status != "possible" or h is first_of_file[h.evidence[0].file]
    ]


def _order(hypothesis: Hypothesis, logs: Logs, behind: bool) -> tuple[float, bool]:
    """Place of a hypothesis, the smallest first: the surest; not a cause of slowness, which ends no job, or
    what an earlier attempt printed (``behind``) before what is likely to have ended it; not a warning before
    an error that a rank raised."""
    place: float = STATUSES.index(hypothesis.status)
    if behind or (hypothesis.cause in _ONLY_SLOW and not says(logs.context, "<slow>")):
        place = max(place, STATUSES.index("likely") + 0.5)
    return place, logs.raised is not None and bool(_WARNING.match(hypothesis.evidence[0].text))


def _hypothesis(cause_id: str, indications: list[Indication], logs: Logs) -> Hypothesis:
    """The indications of one cause as one hypothesis: the surest gives its status, and the one that knows
    most about the first line gives the explanation and the remedy."""
    best = sorted(indications, key=lambda p: STATUSES.index(p.status))
    status = best[0].status
    surest = [p for p in best if p.status == status]
    about_first_line = [
        p
        # of a crash, a weaker message of the line that the rank raised says more
        for p in (best if cause_id == "peer-crashed" else surest)
        if p.advice and (p.advice.says or p.advice.remedy) and p.evidence[0] == best[0].evidence[0]
    ]
    speaks = (about_first_line or [p for p in surest if p.advice] or best)[0]
    advice = speaks.advice or Advice()
    quoted = (speaks, *best) if advice.says else best  # first the line that the answer is about
    lines = dict.fromkeys(line for p in quoted for line in p.evidence)
    evidence = tuple(line for line in lines if is_same_attempt(line, quoted[0].evidence[0], logs))[:8]
    place, raised = _raised(evidence, logs) if cause_id == "peer-crashed" else ("", None)
    if raised:  # the exception before what launchers report of it
        evidence = tuple(dict.fromkeys((raised, *evidence)))
    texts = [line.text for line in evidence]
    cause = fitting(cause_id, *texts)
    rows = not_done(advice.remedy or cause.remedy, logs)
    if raised:  # in place of a search for it
        others = [row for row in rows if "(Error|Exception)" not in "".join(row[2])]
        rows = (("you", f"Read and fix {place}, where the program raised: {raised.text}", ()), *others)
    remedy = remedies_for(cause_id, status, launcher=logs.launcher, rows=rows)
    bus = next(filter(None, map(bus_of_message, texts)), "")
    meaning = (advice.says or cause.says) + (
        f" NCCL names the GPU by its hexadecimal PCI bus id, {bus}." if bus and advice.says else ""
    )
    return Hypothesis(
        cause=cause_id,
        status=status,
        title=cause.title,
        says=meaning,
        evidence=evidence,
        remedy=remedy,
        decides=Decides(*(advice.decides or cause.decides)),
        against=tuple(dict.fromkeys(text for p in surest for text in p.against)),
    )


def _raised(evidence: Sequence[LogLine], logs: Logs) -> tuple[str, LogLine | None]:
    """(file:line of the program's own code that raised the first exception among these lines, the
    exception); ("", None) if its traceback does not show it."""
    frames = logs.seen[OWN_FRAME].lines if OWN_FRAME in logs.seen else []
    is_error = compiled(EXPRESSIONS["rank-error"]).search
    for line in (e for e in evidence if e == logs.raised or is_error(e.text)):
        for frame in frames:
            if 0 < line.line - frame.line <= TRACEBACK and (frame.file, frame.rank) == (line.file, line.rank):
                path, number = re.findall(r'"([^"]+)", line (\d+)', frame.text)[0]
                return f"{path}:{number}", line
    return "", None


def _without_noise(ranked: list[Hypothesis], logs: Logs) -> list[Hypothesis]:
    """`benign` leads if nothing failed and nothing surer is known. Beside a failure, or a complaint of the
    reporter, it is left out."""
    benign = [h for h in ranked if h.cause == "benign"]
    others = [h for h in ranked if h.cause != "benign"]
    # a likely `benign`: the line itself reports that all is well
    fine = works(logs.context) or any(h.status == "likely" for h in benign)
    harmless = {line for h in benign for line in h.evidence}
    # in words that are not known to be harmless
    warned = [h for h in others if any("NCCL WARN" in e.text and e not in harmless for e in h.evidence)]
    grave = [
        h for h in others if h.status == "established" or (not fine and (h.status == "likely" or h in warned))
    ]
    failed = failed_line(logs) is not None or (not fine and says(logs.context, "<complaint>"))
    proven = {line for h in others if h.status == "established" for line in h.evidence}
    ended = [h.evidence[0] for h in others if h.status == "established" and h.cause in ENDED]
    sure = [line for h in others if h.status in ("established", "likely") for line in h.evidence]

    def is_explained(h: Hypothesis) -> bool:
        """Whether a surer cause explains its lines; a rank's death if a proven one explains the first."""
        lines, before = (sure, sure) if h.cause == "peer-crashed" else (proven, ended)
        if h.status == "likely" and h.cause == "peer-crashed":
            return h.evidence[0] in proven
        return h.status == "possible" and all(
            e in lines or any(surely_after(e, line, logs) for line in before) for e in h.evidence
        )

    others = [h for h in others if not is_explained(h)]
    return others if grave or failed else benign + others


def findings(logs: Logs, hypotheses: list[Hypothesis]) -> list[Finding]:
    """The hypotheses of these logs as findings of a step; at least one."""
    if not logs.files and not logs.context:
        return [
            Finding(
                "no-log-named",
                Severity.SKIPPED,
                "no log was given. Name a file or folder with --log (papermill: -p log PATH)",
            )
        ]
    problems = {
        f.name: f.problem
        or f.left_out
        or ("is empty" if not f.size_bytes and DUMP_NAME.search(f.name) else "")
        for f in logs.files
    }
    unread = [
        Finding("log-not-read", Severity.UNKNOWN, f"{name}: {problem}", (Evidence(problem, name),))
        for name, problem in problems.items()
        if problem
    ]
    if not hypotheses or hypotheses[0].cause == "benign":
        failed = failed_line(logs)
        ended = (
            not hypotheses
            and result_code(logs)
            and failed
            and failed.file != CONTEXT
            and not works(logs.context)
        )
        severity = Severity.BROKEN if ended else Severity.UNKNOWN
        learn = remedies_for("", launcher=logs.launcher, rows=_WARNINGS) if ended else ()
        unread.insert(0, Finding("no-cause-in-log", severity, nothing_shown(logs, hypotheses), remedy=learn))
    elif all(h.status == "possible" for h in hypotheses):
        # what is only possible is no verdict, never health; a line that ends a job is a fault
        # before its cause is known
        unread.insert(
            0,
            Finding(
                UNDECIDED,
                Severity.BROKEN if is_fault(hypotheses[0], logs) else Severity.UNKNOWN,
                undecided(hypotheses, logs),
                remedy=(check_first(hypotheses[0].decides),),
            ),
        )
    return [
        *(log_points_to_cause(h, _severity(h, hypotheses[0], logs)) for h in hypotheses),
        *unread,
        *findings_beside(logs, hypotheses),
    ]


def _severity(hypothesis: Hypothesis, lead: Hypothesis, logs: Logs) -> Severity:
    """Severity of a likely cause; a cause of slowness is a note beside what ended the job."""
    if hypothesis.cause in _ONLY_SLOW and lead.cause not in SLOW and lead.status != "possible":
        return Severity.NOTE
    return Severity.BROKEN if failed_line(logs) or hypothesis.cause in _STOPS else Severity.WARN


def answer(logs: Logs, hang_asks: str | None = None) -> Answer:
    """The answer from the logs alone. ``hang_asks``: what `hang`, which read dumps among these files, asks
    for next."""
    read = current(logs)
    hypotheses = judge(read)
    if hang_asks is not None:
        hypotheses = [_after_hang(h, hang_asks) for h in hypotheses]
    if has_ended(read):
        hypotheses = list(map(after_end, hypotheses))
    shown = findings(dataclasses.replace(read, catalogue=logs.catalogue), hypotheses)
    return Answer(read, hypotheses, shown, tuple(fits(read, hypotheses)))


def _after_hang(hypothesis: Hypothesis, asks: str) -> Hypothesis:
    """The answer without a pointer to `hang`, which has already read these files."""
    decides = hypothesis.decides
    if decides.line.startswith("nccl-runbook hang "):
        decides = dataclasses.replace(decides, line=asks, why="what the dumps do not show")
    return dataclasses.replace(hypothesis, decides=decides)
