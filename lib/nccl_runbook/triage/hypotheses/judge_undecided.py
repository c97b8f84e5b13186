"""Logs in which no message decides: what is open, and what points to a cause."""

import re

from nccl_runbook.causes.causes import causes, remedies_for
from nccl_runbook.core.facts import counted, grouped, listed, rank_names
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity, quoted
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.clues import LOST, SLOW, catalogue, version, works
from nccl_runbook.messages.facts import CONTEXT, Logs
from nccl_runbook.messages.judge import failed_line, is_earlier
from nccl_runbook.triage.hypotheses.judge_hypothesis import Decides, Hypothesis, platform, where
from nccl_runbook.triage.hypotheses.judge_weights import WENT_ON, fits

# host, process and thread of a warning of NCCL
_THREAD = re.compile(r"([\w.-]{1,80}:\d+:\d+) \[\d+\] [^\n]{0,120}?NCCL WARN ")
_SEVERITY = {"established": Severity.BROKEN, "possible": Severity.NOTE}


def nothing_shown(logs: Logs, hypotheses: list[Hypothesis]) -> str:
    """Why no cause is named, in one sentence."""
    read = [
        f
        for f in logs.files
        if f.lines and not f.problem and not (logs.foreign and f.left_out.startswith("damaged JSON"))
    ]
    if not logs.files:
        fit = len(fits(logs, hypotheses))
        return (
            f"these words fit {counted(fit, 'cause')}. To see which cause it is, also name the log of the job"
            if fit
            else "these words alone show no cause. Also name the log of the job"
            if logs.context
            else "no log was named"
        )
    if not read:
        why = [
            f"{f.name} {f.problem}"
            if f.problem
            else f"{f.name}: {f.left_out}"
            if f.lines
            else f"{f.name} is empty"
            for f in logs.files
            if f.problem or f.lines or not f.size_bytes
        ]
        return (
            f"nothing could be read ({'; '.join(why[:3])}). Name a log, a dump or a script of the job"
            if why
            else "no log was read"
        )
    lines = counted(sum(f.lines for f in read), "line")
    if _over_sockets(logs) and not fits(logs, hypotheses):
        return (
            "no known fault, but NCCL sends over TCP sockets (NET/Socket), which have a tenth or less "
            "of the bandwidth of InfiniBand or RoCE"
        )
    if hypotheses:
        shown = quoted(hypotheses[0].evidence[0].text)
        harmless = (
            f"the job went on after {shown}" if hypotheses[0].says == WENT_ON else f"{shown} is harmless"
        )
        return (
            f"no known fault in {lines}: {harmless}"
            f"{_unknown(logs) or '. A log cannot show that a job is healthy'}"
        )
    if coded := result_code(logs):
        return f"{catalogue()['meanings'][coded]} ({where(logs.seen[coded].lines[0])})"
    if logs.foreign:
        return f"{lines} read, but this does not look like the log of a GPU job"
    if fits(logs, hypotheses):
        what = "The description" if logs.context else "What the log shows"
        return f"no known fault in {lines}. {what} fits several causes"
    healthy = "" if failed_line(logs) else ". A log cannot show that a job is healthy"
    return f"no known fault in {lines}{_unknown(logs) or healthy}"


def result_code(logs: Logs) -> str:
    """The id of a result code of NCCL that was printed; empty without one."""
    return next((name for name in catalogue()["meanings"] if name in logs.seen), "")


def _over_sockets(logs: Logs) -> bool:
    """Whether NCCL uses sockets, and no line shows a job of one host."""
    return "nccl-channels-via-net-socket" in logs.seen or (
        "nccl-using-network-socket" in logs.seen and "nccl-within-one-host" not in logs.seen
    )


def _unknown(logs: Logs) -> str:
    """The first line that looks like an error and that no row of the catalogue knows."""
    first = next((t.first for t in logs.unknown), None)
    return f", but this line may show a fault: {quoted(first.text)} ({where(first)})" if first else ""


def undecided(hypotheses: list[Hypothesis], logs: Logs) -> str:
    """What was printed or what it shows, and what it may mean."""
    line = hypotheses[0].evidence[0]
    says = _decoded(hypotheses[0]).partition(". ")[0].rstrip(".") or _waited(line, logs)
    # a sentence that begins with the name of a program keeps its capital letter
    is_name = says[1:2].isupper() or says.startswith(
        ("DeepEP", "Docker", "Gloo", "Kubernetes", "Megatron", "Ray", "Slurm")
    )
    shown = (says if is_name else says[:1].lower() + says[1:]) or (
        f"{'you report' if line.file == CONTEXT else 'the log shows'} {quoted(line.text)}"
    )
    others = counted(len(hypotheses) - 1, "other cause")
    if says and hypotheses[0].cause == "peer-crashed":  # that a rank died is what was shown
        return f"{shown} ({where(line)})" + (f". Also possible: {others}" if len(hypotheses) > 1 else "")
    return f"{shown} ({where(line)}). Possible: {hypotheses[0].title}" + (
        f", or {others}" if len(hypotheses) > 1 else ""
    )


def _waited(line: LogLine, logs: Logs) -> str:
    """Ranks that waited, and in which collective, from lines of watchdogs, the most first; how long, if this
    line shows it."""
    late = [(row.rank, work) for row in logs.ranks for work in row.timeouts[:1] if work.seq is not None]
    this = next((work for _, work in late if work.at == line), None)
    calls = sorted(
        grouped((f"{work.op} {work.seq}", rank) for rank, work in late).items(),
        key=lambda call: -len(call[1]),
    )
    waits = (f"{rank_names(ranks)} waited in {call}" for call, ranks in calls[:2])
    if this is None:
        return ""
    # an exception ends a wait before its timeout
    until = f" until the timeout of {this.timeout_ms // 1000} s" if 0 < this.timeout_ms <= this.ran_ms else ""
    return f"{' and '.join(waits)}{until}"


def _decoded(hypothesis: Hypothesis) -> str:
    """What is specific to this log; empty if only the general text of the cause applies."""
    return hypothesis.says.removeprefix(causes()[hypothesis.cause].says).strip()


def is_fault(hypothesis: Hypothesis, logs: Logs) -> bool:
    """Whether its line was printed (not only quoted), names the fault, and ends jobs. The line of a rank
    that lost its peer does not."""
    ended, line = logs.seen.get("job-ended"), hypothesis.evidence[0]
    ends = {
        *(ended.lines if ended and not ended.resumed else ()),
        logs.failed,
        logs.raised,
        *(r.first_error for r in logs.ranks),
    }
    return (
        bool(_decoded(hypothesis))
        and line not in [t.at for r in logs.ranks for t in r.timeouts]
        and (
            not ends.isdisjoint(hypothesis.evidence)
            # NCCL warned before torch reported NCCL's error, which names no reason itself
            or (
                logs.failed is not None
                and logs.failed.file == line.file
                and logs.failed.line > line.line
                and "NCCL WARN" in line.text
                and "NCCL error" in logs.failed.text
            )
            or _was_returned(line, logs)
        )
        and line.file != CONTEXT
        and not LOST.search(line.text)
        and not works(logs.context)
    )


def _was_returned(line: LogLine, logs: Logs) -> bool:
    """Whether NCCL warned in this line and then returned an error in the same thread, without a choice of
    another network below it and without progress of the job."""
    returned, networks = logs.seen.get("nccl-returned"), logs.seen.get("nccl-network")
    thread = _THREAD.search(line.text)
    if not thread or returned is None or returned.resumed:
        return False
    goes_on = any(n.file == line.file and n.line > line.line for n in (networks.lines if networks else ()))
    return not goes_on and any(
        r.file == line.file and r.line > line.line and f"{thread[1]} [" in r.text for r in returned.lines
    )


def findings_beside(logs: Logs, hypotheses: list[Hypothesis]) -> list[Finding]:
    """What a reader must know to judge these causes."""
    lead = hypotheses[0] if hypotheses and hypotheses[0].cause != "benign" else None
    vendor, again = platform(logs), lead is not None and (logs.attempts > 1 or bool(logs.again))
    first = lead is not None and all(is_earlier(line, logs) for line in lead.evidence)
    hosts = list(dict.fromkeys(h for r in logs.ranks for h in r.hosts))
    files = list(dict.fromkeys(h.evidence[0].file for h in hypotheses if h.cause != "benign"))
    return [
        Finding(name, Severity.NOTE, says, remedy=remedy)
        for name, holds, says, remedy in (
            (
                "other-vendor",
                vendor,
                f"The job ran on {vendor}. Advice that is only for NVIDIA is left out.",
                (),
            ),
            (
                "tcp-sockets",
                _over_sockets(logs) and (not hypotheses or hypotheses[0].cause == "benign"),
                "if these hosts have InfiniBand or RoCE cards, NCCL did not use these cards",
                remedies_for("net-socket-fallback"),
            ),
            (
                "started-again",
                again,
                "The launcher started the ranks again. This answer is about "
                + ("an earlier attempt" if first else "the last attempt that shows a failure")
                + (
                    ", and the ranks went on after the restart."
                    if lead
                    and first
                    and any(s.resumed and s.lines[0] in lead.evidence for s in logs.seen.values())
                    else "."
                )
                + " nccl-runbook hang judges the last attempt.",
                (),
            ),
            (
                "read-elsewhere",
                bool(logs.here and hosts) and logs.here.split(".")[0] not in {h.split(".")[0] for h in hosts},
                f"The log is from {listed(hosts, 4)}, but this machine is {logs.here}. Run commands there.",
                (
                    Remedy(
                        "you",
                        "If you can install nothing on those hosts, copy nccl-look.pyz there:",
                        (
                            "python3 nccl-look.pyz --json look.json   # there",
                            "nccl-runbook run --record look.json   # on this machine",
                        ),
                    ),
                ),
            ),
            (
                "several-jobs",
                _are_apart(logs, files),
                f"The causes stand in different files ({', '.join(files)}). If these are logs of different "
                "jobs, each job has its own cause: name only the files of one job.",
                (),
            ),
            (
                "catalogue-differs",
                logs.catalogue != version(),
                "the record was made with a different version of the message catalogue, so only its "
                "quoted lines were read again",
                (),
            ),
        )
        if holds
    ]


def _are_apart(logs: Logs, files: list[str]) -> bool:
    """Whether several files show a cause, and they are not the logs of one job with a file for each rank."""
    one_rank_each = sorted(f for r in logs.ranks for f in r.files if f in files) == sorted(files)
    return len(files) > 1 and CONTEXT not in files and not one_rank_each


def log_points_to_cause(hypothesis: Hypothesis, likely: Severity) -> Finding:
    """The finding for a hypothesis, which a test still has to decide. ``likely``: severity of a likely
    cause, broken if the job failed."""
    severity = (
        Severity.NOTE
        if hypothesis.cause == "benign"
        else likely
        if hypothesis.cause in SLOW and hypothesis.status == "established"
        else {**_SEVERITY, "likely": likely}[hypothesis.status]
    )
    evidence = [Evidence(line.text, where(line)) for line in hypothesis.evidence]
    if decoded := _decoded(hypothesis):
        evidence.append(Evidence(decoded, "decoded"))
    decides, line = hypothesis.decides, hypothesis.decides.line
    asked = f"decides: {decides.why}" + (f" ({line})" if line else "")
    return Finding(
        "log-points-to-cause",
        severity,
        hypothesis.title,
        evidence=(*evidence, Evidence(asked, decides.probe)),
        remedy=hypothesis.remedy or (check_first(decides),),
        cause=hypothesis.cause,
        status=hypothesis.status,
        against=tuple(Evidence(text, "logs") for text in hypothesis.against),
    )


def check_first(decides: Decides) -> Remedy:
    """The deciding test as a remedy, with the line to paste if it has one."""
    return Remedy("you", f"First check {decides.why}.", (decides.line,) if decides.line else ())
