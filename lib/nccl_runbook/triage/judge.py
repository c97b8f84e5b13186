"""What broke first, from what the job printed: hypotheses, best first, and the answer for terminal, JSON,
page and notebook. No test was run; a log alone proves no health."""

import collections
import dataclasses
import re

from nccl_runbook.causes.causes import Advice, Cause, Rows, causes, fitting, usual
from nccl_runbook.core.facts import bus_of_message, counted, grouped, rank_names
from nccl_runbook.core.findings import STATUSES, UNDECIDED, Evidence, Finding, Remedy, Severity, quoted
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.clues import ENDED, SLOW, Clue, catalogue, clues, compiled, says, version, works
from nccl_runbook.messages.facts import CONTEXT, Logs
from nccl_runbook.messages.judge import current, surely_after
from nccl_runbook.messages.kinds import plain
from nccl_runbook.triage import judge_against, judge_ranks as triage_ranks
from nccl_runbook.triage.symptoms import step_texts

MOST = 5  # hypotheses, and causes that fit, that are worth a reader's time
MAY_FOLLOW = frozenset(["gpu-memory-exhausted", "peer-crashed", "shm-too-small"])  # also of a timeout
PLATFORMS = {
    "platform-rocm": "AMD GPUs (ROCm, RCCL)",
    "platform-ascend": "Ascend NPUs (HCCL)",
    "platform-xpu": "Intel GPUs (oneCCL)",
}
_NVIDIA = re.compile(
    r"(?i)nvidia|nvml|nvlink|nvswitch|fabric ?manager|libnccl|\bdcgm|nccl-runbook (?:run|ab)|\bXid\b|nccl\.so"
)
_NVIDIA_ONLY = frozenset(
    [
        "fabric-manager-down",
        "nvls-fabric-fault",
        "nvml-call-failed",
        "driver-library-mismatch",
        "nccl-older-than-gpu",
    ]
)
HANG = "nccl-runbook hang "
_SEVERITY = {"established": Severity.BROKEN, "possible": Severity.NOTE}


@dataclasses.dataclass(frozen=True)
class Decides:
    """The cheapest evidence that settles a hypothesis: the notebook or command, why, and the line
    to run where the job ran."""

    probe: str
    why: str
    line: str


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One possible first cause. ``against``: what speaks against it, in words."""

    cause: str
    status: str
    title: str
    says: str
    evidence: tuple[LogLine, ...]
    remedy: tuple[Remedy, ...]
    decides: Decides
    against: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Answer:
    """``hypotheses``: best first; ``findings``: the same as findings of a step; ``hosts`` and
    ``there``: other hosts, and lines to run on them as (line, what it tells apart, seconds); ``fits``: what
    fits the symptom, and no line shows."""

    logs: Logs
    hypotheses: list[Hypothesis]
    findings: list[Finding]
    hosts: list[str]
    there: list[tuple[str, str, str]]
    compared: judge_against.Comparison | None = None
    fits: tuple[Cause, ...] = ()


def judge(logs: Logs) -> list[Hypothesis]:
    """Hypotheses, best first; none where nothing is known. `benign` alone means: only
    harmless messages were seen."""
    out = triage_ranks.ruled_out(logs.context)
    seen = [
        p
        for p in (_weighed(p, logs) for p in [*pointers(logs), *_survived(logs)])
        if p.status == "established" or p.cause not in out
    ]
    found = sorted(
        [*seen, *triage_ranks.experiments(logs.context)],
        key=lambda p: (p.cause in ENDED and _failed_before(p.evidence[0], logs), p.place),
    )  # what had failed comes first
    merged = [
        _hypothesis(cause, those, logs) for cause, those in grouped((p.cause, p) for p in found).items()
    ]
    ranked = _without_noise(sorted(merged, key=lambda h: STATUSES.index(h.status)), logs)
    return (
        [_carried_over(h) for h in ranked if h.cause not in _NVIDIA_ONLY][:MOST]
        if platform(logs)
        else ranked[:MOST]
    )


def platform(logs: Logs) -> str:
    """Whose GPUs they are, if a line shows that they are not NVIDIA's; else ""."""
    return next((words for message, words in PLATFORMS.items() if message in logs.seen), "")


def _carried_over(hypothesis: Hypothesis) -> Hypothesis:
    """With only what holds on other vendors' GPUs, too."""
    rows = (
        (r, tuple(line for line in r.lines if not _NVIDIA.search(line)))
        for r in hypothesis.remedy
        if not _NVIDIA.search(r.text)
    )
    remedy = tuple(dataclasses.replace(r, lines=lines) for r, lines in rows if lines or not r.lines)
    return dataclasses.replace(
        hypothesis, remedy=remedy, decides=Decides(*_elsewhere(tuple(vars(hypothesis.decides).values())))
    )


def _elsewhere(decides: tuple[str, str, str]) -> tuple[str, str, str]:
    return (
        decides
        if not _NVIDIA.search(" ".join(decides))
        else ("by hand", "the same collective in the test of that library (rccl-tests, hccl_test)", "")
    )


def fits(logs: Logs, hypotheses: list[Hypothesis]) -> list[Cause]:
    """What else fits the symptom, the most usual first.
    Nothing beside what is likely, or if nobody complains."""
    if any(h.status != "possible" or h.cause == "benign" for h in hypotheses) or not (
        logs.context or failed_line(logs)
    ):
        return []
    words = [c.cause for c in clues() if c.words and _fires(c, logs)]
    symptoms = [row for name, row in catalogue()["fits"].items() if name in logs.seen]
    shared = collections.Counter(cause for row in symptoms for cause in row)
    usual = sorted(shared, key=lambda c: (-shared[c], min(row.index(c) for row in symptoms if c in row)))
    left_out = (
        {h.cause for h in hypotheses}
        | triage_ranks.ruled_out(logs.context)
        | (set() if may_be_slow(logs) else SLOW)
    )
    named = [causes()[c] for c in dict.fromkeys([*words, *usual]) if c not in left_out][:MOST]
    return (
        [dataclasses.replace(c, decides=_elsewhere(c.decides)) for c in named if c.id not in _NVIDIA_ONLY]
        if platform(logs)
        else named
    )


def pointers(logs: Logs) -> list[triage_ranks.Pointer]:
    """What messages point at, and what the ranks show."""
    named = [
        _pointer(clue, logs)
        for clue in clues()
        if _fires(clue, logs) and not (clue.words and clue.status == "possible")
    ]
    known = {
        (p.evidence[0], status) for p in named for status in STATUSES[STATUSES.index(p.status) :]
    }  # that cause, not only an exception
    return [
        *named,
        *(
            p
            for p in triage_ranks.judge(logs)
            if p.cause != "peer-crashed" or (p.evidence[0], p.status) not in known
        ),
    ]


def _survived(logs: Logs) -> list[triage_ranks.Pointer]:
    """Messages after which the job went on."""
    rows = [logs.seen[c.message] for c in clues() if c.message in logs.seen and c.cause not in SLOW]
    lines = tuple(seen.lines[0] for seen in rows if seen.resumed or works(logs.context))[:4]
    return (
        [
            triage_ranks.Pointer(
                "benign",
                "possible",
                lines,
                (),
                900,
                Advice("The job continued after these lines, or had ended well before them."),
            )
        ]
        if lines
        else []
    )


def _fires(clue: Clue, logs: Logs) -> bool:
    """Whether its own line was seen, with all that must be there and nothing that must not."""
    seen = logs.seen.get(clue.message)
    if (
        seen is None
        or seen.resumed
        and not clue.stays
        or clue.cause in SLOW
        and not may_be_slow(logs, seen.resumed)
    ):
        return False
    return all(i in logs.seen for i in clue.also) and not any(i in logs.seen for i in clue.without)


def _pointer(clue: Clue, logs: Logs) -> triage_ranks.Pointer:
    seen, beside = logs.seen[clue.message], [logs.seen[i].lines[0] for i in clue.also]
    place = (
        100 + 0.3 * clue.order - 100 * bool(clue.also)
    )  # what must stand beside it makes a message say more
    pattern = compiled({**catalogue()["printed"], **catalogue()["spoken"]}[clue.message])
    fields = (
        found.groupdict() for line in seen.lines for found in [pattern.search(plain(line.text))] if found
    )
    advice = clue.advice and clue.advice.filled(next(fields, {}))
    return triage_ranks.Pointer(clue.cause, clue.status, (*seen.lines[:4], *beside), (), place, advice)


def may_be_slow(logs: Logs, works: bool = False) -> bool:
    """Whether somebody complains of slowness, a rate was measured, or it is not known
    to have failed or to work."""
    return (
        says(logs.context, "<slow>")
        or "nccl-tests-row" in logs.seen
        or not (works or says(logs.context, "<complaint>") or failed_line(logs))
    )


def _weighed(pointer: triage_ranks.Pointer, logs: Logs) -> triage_ranks.Pointer:
    """Less sure if only the reporter says it, or if it was printed after what it should explain."""
    doubts = [
        why
        for doubtful, why in (
            (pointer.evidence[0].file == CONTEXT, "reported by the user, not printed by the job"),
            (
                pointer.cause in ENDED and _failed_before(pointer.evidence[0], logs),
                "the job had failed before that: probably a consequence",
            ),
            (
                pointer.cause in MAY_FOLLOW and _after_timeout(pointer, logs),
                "printed after the timeout, by a rank that had waited: probably a consequence",
            ),
        )
        if doubtful and pointer.status != "possible"
    ]
    return (
        dataclasses.replace(pointer, status="possible", against=(*pointer.against, *doubts))
        if doubts
        else pointer
    )


def _failed_before(line: LogLine, logs: Logs) -> bool:
    """Whether the same file holds a failure above this line."""
    ends = [*(logs.seen["job-ended"].lines if "job-ended" in logs.seen else ()), logs.failed, logs.timeout]
    return any(end is not None and end.file == line.file and end.line < line.line for end in ends)


def _after_timeout(pointer: triage_ranks.Pointer, logs: Logs) -> bool:
    """Whether each line of evidence stands below a watchdog line of the same rank."""
    first = {r.rank: (r.timeouts[0].at.file, r.timeouts[0].at.line) for r in logs.ranks if r.timeouts}
    printed = [e for e in pointer.evidence if e.file != CONTEXT]
    return bool(printed) and all(
        e.rank in first and e.file == first[e.rank][0] and e.line > first[e.rank][1] for e in printed
    )


def _hypothesis(cause_id: str, found: list[triage_ranks.Pointer], logs: Logs) -> Hypothesis:
    best = sorted(found, key=lambda p: STATUSES.index(p.status))
    status, surest = best[0].status, [p for p in best if p.status == best[0].status]
    evidence = tuple(dict.fromkeys(line for p in best for line in p.evidence))[:8]
    texts = [line.text for line in evidence]
    cause, advice = fitting(cause_id, *texts), next((p.advice for p in surest if p.advice), Advice())
    remedy = usual(
        cause_id, status, launcher=logs.launcher, rows=_not_done(advice.remedy or cause.remedy, logs)
    )
    bus = next(filter(None, map(bus_of_message, texts)), "")
    says = (advice.says or cause.says) + (
        f" NCCL names that GPU by its PCI bus id in hexadecimal: it is {bus}." if bus else ""
    )
    return Hypothesis(
        cause_id,
        status,
        cause.title,
        says,
        evidence,
        remedy,
        Decides(*(advice.decides or cause.decides)),
        tuple(dict.fromkeys(text for p in surest for text in p.against)),
    )


def _not_done(remedy: Rows, logs: Logs) -> Rows:
    """The rows without the settings that a job printed as set."""
    done = {
        f"export {pair}" for pair, seen in logs.seen.items() if "=" in pair and seen.lines[0].file != CONTEXT
    }
    left = tuple(
        (who, text, tuple(line for line in lines if line not in done)) for who, text, lines in remedy
    )
    kept = tuple(row for row, (_, _, lines) in zip(left, remedy) if row[2] or not lines)
    told = (
        "you",
        "The usual setting is in the log already. Check that the ranks which failed have it; if so, "
        "it does not help here.",
        (),
    )
    return kept if kept or not remedy else (told,)


def _without_noise(ranked: list[Hypothesis], logs: Logs) -> list[Hypothesis]:
    """`benign` leads if nothing failed and nothing surer is known. Beside a failure, or a complaint of the
    reporter, it is left out."""
    benign = [h for h in ranked if h.cause == "benign"]
    others = [h for h in ranked if h.cause != "benign"]
    fine = works(logs.context) or any(
        h.status == "likely" for h in benign
    )  # the line itself says that nothing is wrong
    harmless = {line for h in benign for line in h.evidence}
    warned = [
        h for h in others if any("NCCL WARN" in e.text and e not in harmless for e in h.evidence)
    ]  # in words not known as harmless
    grave = [
        h for h in others if h.status == "established" or not fine and (h.status == "likely" or h in warned)
    ]
    failed = failed_line(logs) is not None or not fine and says(logs.context, "<complaint>")
    proven = {line for h in others if h.status == "established" for line in h.evidence}
    ended = [h.evidence[0] for h in others if h.status == "established" and h.cause in ENDED]
    others = [
        h
        for h in others
        if h.status != "possible"
        or not all(e in proven or any(surely_after(e, end, logs) for end in ended) for e in h.evidence)
    ]  # these lines are explained
    return others if grave or failed else benign + others


def failed_line(logs: Logs) -> LogLine | None:
    """A line that says that the job failed, whatever the cause."""
    ended = logs.seen.get("job-ended")
    ended = ended.lines[0] if ended and not ended.resumed else logs.failed
    return next(
        (row.first_error or row.timeouts[0].at for row in logs.ranks if row.first_error or row.timeouts),
        ended,
    )


def where(line: LogLine) -> str:
    """In words: "train.log line 812, rank 3"."""
    printed = "/".join(line.file.split("/")[-2:]) + (f" line {line.line}" if line.line else "")
    return ("your description" if line.file == CONTEXT else printed) + (
        f", rank {line.rank}" if line.rank is not None else ""
    )


def _nothing_shown(logs: Logs, hypotheses: list[Hypothesis]) -> str:
    """Why no cause is named."""
    read = [f for f in logs.files if not f.problem and f.lines]
    if not logs.files:
        return (
            "these words alone do not show a cause. Add what the job printed"
            if logs.context
            else "no log was named"
        )
    if not read:
        why = [f"{f.name} {f.problem or 'is empty'}" for f in logs.files if f.problem or not f.size_bytes]
        return f"nothing could be read ({'; '.join(why[:3])})" if why else "no log was read"
    if hypotheses:
        return "only known harmless messages. A log cannot show that a job is healthy"
    if coded := next((name for name in catalogue()["meanings"] if name in logs.seen), ""):
        line = logs.seen[coded].lines[0]
        return f"{quoted(line.text)} ({where(line)}) means that {catalogue()['meanings'][coded]}"
    fit = (
        ". The description fits several causes. The tests below separate them"
        if fits(logs, hypotheses)
        else ""
    )
    foreign = "this does not look like the log of a GPU job" if logs.foreign else "no known message was found"
    lines = sum(f.lines for f in read)
    return f"{lines} {'line was' if lines == 1 else 'lines were'} read, and {foreign}{fit}"


def _undecided(hypotheses: list[Hypothesis], logs: Logs) -> str:
    """What was printed, or what that says, and what it may mean."""
    line = hypotheses[0].evidence[0]
    says = _decoded(hypotheses[0]).partition(". ")[0].rstrip(".") or _waited(line, logs)
    reported = f"{'you report' if line.file == CONTEXT else 'the log shows'} {quoted(line.text)}"
    shown = says[:1].lower() + says[1:] if says and not says[1:2].isupper() else says or reported
    others = f", or {counted(len(hypotheses) - 1, 'other cause')}" * (len(hypotheses) > 1)
    return f"{shown} ({where(line)}). Possible: {hypotheses[0].title}{others}"


def _waited(line: LogLine, logs: Logs) -> str:
    """Who waited for how long in which collective, if this line of a watchdog says so; the most first."""
    late = [(row.rank, work) for row in logs.ranks for work in row.timeouts[:1] if work.seq is not None]
    this = next((work for _, work in late if work.at == line), None)
    calls = sorted(
        grouped((f"{work.op} {work.seq}", rank) for rank, work in late).items(),
        key=lambda call: -len(call[1]),
    )
    waits = " and ".join(f"{rank_names(ranks)} waited in {call}" for call, ranks in calls[:2])
    return f"{waits} until the timeout of {this.timeout_ms // 1000} s" if this else ""


def _decoded(hypothesis: Hypothesis) -> str:
    """What is true of this log alone, "" for nothing but what the cause says in general."""
    return hypothesis.says.removeprefix(causes()[hypothesis.cause].says).strip()


def _is_fault(hypothesis: Hypothesis, logs: Logs) -> bool:
    """Whether its line, printed and not only told, says what is wrong, and a job ends with it."""
    ends, line = logs.seen.get("job-ended"), hypothesis.evidence[0]
    return bool(
        ends
        and not ends.resumed
        and line in ends.lines
        and line.file != CONTEXT
        and _decoded(hypothesis)
        and not works(logs.context)
    )


def there(logs: Logs, hypotheses: list[Hypothesis]) -> tuple[list[str], list[tuple[str, str, str]]]:
    """The hosts of a log that names others than the one where it is read, and what to run there as no test
    is run here: lines, the causes that each tells apart, and what it costs."""
    hosts = list(dict.fromkeys(h for r in logs.ranks for h in r.hosts))
    if not logs.here or not hosts or logs.here.split(".")[0] in {h.split(".")[0] for h in hosts}:
        return [], []
    lines = grouped((one.decides.line, one) for one in hypotheses)
    step = {line: step_texts().get(those[0].decides.probe) for line, those in lines.items()}
    rows = [
        (
            line,
            "; or ".join(h.title for h in those),
            f"about {step[line].about_s} s" if step[line] else "reads only",
        )
        for line, those in lines.items()
    ]
    return hosts, rows or [
        ("nccl-runbook run", "all steps: causes that a log cannot show", "about 5 minutes")
    ]


def findings(logs: Logs, hypotheses: list[Hypothesis]) -> list[Finding]:
    """The hypotheses of these logs as findings of a step. At least one."""
    if not logs.files and not logs.context:
        return [
            Finding(
                "no-log-named",
                Severity.SKIPPED,
                "no log was given: --log takes a file or a folder (papermill: -p log PATH)",
            )
        ]
    missed = {f.name: f.problem or f.left_out for f in logs.files}
    unread = [
        Finding("log-not-read", Severity.UNKNOWN, f"{name}: {why}", (Evidence(why, name),))
        for name, why in missed.items()
        if why
    ]
    if not hypotheses or hypotheses[0].cause == "benign":
        unread.insert(0, Finding("no-cause-in-log", Severity.UNKNOWN, _nothing_shown(logs, hypotheses)))
    elif all(h.status == "possible" for h in hypotheses):
        # what is only possible is no verdict, never health; a line that ends a job is a fault
        # before its cause is known
        unread.insert(
            0,
            Finding(
                UNDECIDED,
                Severity.BROKEN if _is_fault(hypotheses[0], logs) else Severity.UNKNOWN,
                _undecided(hypotheses, logs),
                remedy=(_check_first(hypotheses[0].decides),),
            ),
        )
    return [
        *(
            log_points_to_cause(h, Severity.BROKEN if failed_line(logs) else Severity.WARN)
            for h in hypotheses
        ),
        *unread,
        *_beside(logs, hypotheses),
    ]


def _beside(logs: Logs, hypotheses: list[Hypothesis]) -> list[Finding]:
    """What a reader must know to take the causes for what they are."""
    vendor, again = platform(logs), logs.attempts > 1 and hypotheses and hypotheses[0].cause != "benign"
    return [
        Finding(name, Severity.NOTE, says)
        for name, holds, says in (
            (
                "other-vendor",
                vendor,
                f"The job ran on {vendor}: advice that holds only for NVIDIA is left out.",
            ),
            (
                "started-again",
                again,
                f"The ranks were started {logs.attempts} times. This broke first; "
                "nccl-runbook hang judges the last "
                "attempt.",
            ),
            (
                "catalogue-differs",
                logs.catalogue != version(),
                "the record was made with another catalogue of messages: "
                "only its quoted lines were read again",
            ),
        )
        if holds
    ]


def log_points_to_cause(hypothesis: Hypothesis, likely: Severity) -> Finding:
    """A message is a hypothesis until a test decides. ``likely``: how bad a likely cause is,
    broken in a job that failed."""
    severity = (
        Severity.NOTE if hypothesis.cause == "benign" else {**_SEVERITY, "likely": likely}[hypothesis.status]
    )
    evidence = [Evidence(line.text, where(line)) for line in hypothesis.evidence]
    evidence += [Evidence(text, "decoded") for text in [_decoded(hypothesis)] if text]
    line = hypothesis.decides.line
    decides = Evidence(
        f"decides: {hypothesis.decides.why}" + f" ({line})" * bool(line), hypothesis.decides.probe
    )
    check = (_check_first(hypothesis.decides),) * (hypothesis.status == "possible" or not hypothesis.remedy)
    return Finding(
        "log-points-to-cause",
        severity,
        hypothesis.title,
        (*evidence, decides),
        (*check, *hypothesis.remedy),
        hypothesis.cause,
        hypothesis.status,
        tuple(Evidence(text, "logs") for text in hypothesis.against),
    )


def _check_first(decides: Decides) -> Remedy:
    return Remedy("you", f"Check first: {decides.why}.", (decides.line,) if decides.line else ())


def answer(
    logs: Logs,
    compared: judge_against.Comparison | None = None,
    good: str = "",
    bad: str = "",
    hang_asks: str | None = None,
) -> Answer:
    """Judge the logs alone and beside a good run. ``good`` and ``bad``: names of the compared logs;
    ``hang_asks``: what `hang`, which has read dumps among these files, asks for next."""
    read, found = current(logs), judge(current(logs))
    if hang_asks is not None:
        found = [_after_hang(h, hang_asks) for h in found]
    slower = bool(compared and compared.slower)
    kept = [h for h in found if h.cause != "benign" or not slower]
    shown = judge_against.beside(
        findings(dataclasses.replace(read, catalogue=logs.catalogue), found), compared, good, bad
    )
    return Answer(read, kept, shown, *there(read, kept), compared, () if slower else tuple(fits(read, kept)))


def _after_hang(hypothesis: Hypothesis, asks: str) -> Hypothesis:
    """Nobody is sent to `hang`, which has read what is there."""
    decides = hypothesis.decides
    if decides.line.startswith(HANG):
        decides = dataclasses.replace(decides, line=asks, why="what the dumps do not show")
    remedy = (
        dataclasses.replace(r, lines=tuple(line for line in r.lines if not line.startswith(HANG)))
        for r in hypothesis.remedy
    )
    return dataclasses.replace(hypothesis, decides=decides, remedy=tuple(remedy))
