"""How strongly a log supports a cause: what fired, what happened before, what survived."""

import collections
import dataclasses
import re

from nccl_runbook.causes.causes import Advice, Cause, causes
from nccl_runbook.core.findings import STATUSES
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.clues import ENDED, SLOW, catalogue, clues, works
from nccl_runbook.messages.facts import CONTEXT, OWN_FRAME, Logs
from nccl_runbook.messages.judge import (
    Indication,
    failed_line,
    fires,
    is_same_attempt,
    may_be_slow,
    points_to,
    surely_after,
)
from nccl_runbook.triage import judge_ranks
from nccl_runbook.triage.hypotheses.judge_hypothesis import (
    Hypothesis,
    elsewhere,
    platform,
)
from nccl_runbook.triage.ranks import (
    judge_experiments,
)

MOST = 5  # hypotheses, and causes that fit, that are worth a reader's time


# a line without such a word is no alarm
_ALARMS = re.compile(
    r"(?i)warn|err(?:or|no)|fail|fatal|abort|exception|refus|reject|time(?:d )?[- ]?out|unable|can(?:no|')t|"
    r"could not|invalid|closed|lost|mismatch|unhandled|not (?:found|support|destroy)"
)


# no error of a program: a file system, a peer or a host that went away (EIO, ENETDOWN to ESTALE), and SIGTERM
_AWAY = re.compile(r"(?:Errno|os error) (?:5|1[01]\d)\b|Connect|signal: (?:15|Terminated)")
_EVENT = re.compile(r"\b(?:Normal|Warning)\s+[A-Z][a-z]+[A-Z\s]")  # kubectl's events: type and reason
MAY_FOLLOW = frozenset(["gpu-memory-exhausted", "peer-crashed", "shm-too-small"])  # also of a timeout


NVIDIA_ONLY = frozenset(
    [
        "fabric-manager-down",
        "nvls-fabric-fault",
        "nvml-call-failed",
        "driver-library-mismatch",
        "nccl-older-than-gpu",
    ]
)


def fits(logs: Logs, hypotheses: list[Hypothesis]) -> list[Cause]:
    """Other causes that fit the symptom, the most usual first; empty beside a likely cause, or without a
    complaint."""
    if any(h.status != "possible" or h.cause == "benign" for h in hypotheses) or not (
        logs.context or failed_line(logs)
    ):
        return []
    words = [c.cause for c in clues() if c.words and fires(c, logs)]
    symptoms = [row for name, row in catalogue()["fits"].items() if name in logs.seen]
    shared = collections.Counter(cause for row in symptoms for cause in row)
    usual = sorted(shared, key=lambda c: (-shared[c], min(row.index(c) for row in symptoms if c in row)))
    left_out = (
        {h.cause for h in hypotheses}
        | judge_experiments.ruled_out(logs.context)
        | (set() if may_be_slow(logs) else SLOW)
    )
    named = [causes()[c] for c in dict.fromkeys([*words, *usual]) if c not in left_out][:MOST]
    return (
        [dataclasses.replace(c, decides=elsewhere(c.decides)) for c in named if c.id not in NVIDIA_ONLY]
        if platform(logs)
        else named
    )


WENT_ON = "The job continued after these lines, or had already ended well before these lines."


def indications(logs: Logs) -> list[Indication]:
    """What messages point to, and what the ranks show."""
    named = [
        points_to(clue, logs)
        for clue in clues()
        if fires(clue, logs) and not (clue.words and clue.status == "possible")
    ]
    known = {
        (p.evidence[0], status)
        for p in named
        if p.cause != "peer-crashed" or p.advice
        for status in STATUSES[STATUSES.index(p.status) :]
    }  # that cause, not only an exception
    of_ranks = judge_ranks.judge_ranks(logs)
    if (
        logs.raised
        and len(of_ranks) == 1
        and of_ranks[0].evidence[0] == logs.raised
        and (of_ranks[0].advice or Advice()).says
        and not any(_explains_end(p, logs.raised, logs) for p in named)
    ):  # nothing else is known that ended this attempt; what knows more of this error speaks
        return [
            dataclasses.replace(p, status="likely")
            if p.evidence[0] == logs.raised and (p.advice or Advice()).says
            else p
            for p in [*named, dataclasses.replace(of_ranks[0], place=900)]
            if p.cause != "benign"
        ]
    return [
        *named,
        *(p for p in of_ranks if p.cause != "peer-crashed" or (p.evidence[0], p.status) not in known),
    ]


def _explains_end(indication: Indication, raised: LogLine, logs: Logs) -> bool:
    """Whether this may have ended the attempt in which a rank raised an error: not what speaks of that error
    or of the loss of a rank after it."""
    line = indication.evidence[0]
    return (
        indication.cause != "benign"
        and not (indication.cause == "peer-crashed" and (line == raised or surely_after(line, raised, logs)))
        and is_same_attempt(line, raised, logs)
        and not follows_failure(indication, logs)
    )


def survived(logs: Logs) -> list[Indication]:
    """Messages after which the job went on."""
    went_on = [
        message.lines[0]
        for message in [
            logs.seen[c.message] for c in clues() if c.message in logs.seen and c.cause not in SLOW
        ]
        if message.resumed or works(logs.context)
    ]
    lines = tuple(line for line in went_on if _ALARMS.search(line.text))[:4]
    return (
        [
            Indication(
                "benign",
                "possible",
                lines,
                (),
                900,
                Advice(WENT_ON),
            )
        ]
        if lines
        else []
    )


def weighed(indication: Indication, logs: Logs) -> Indication:
    """The indication, less certain if only the reporter says it, or if it was printed after what it should
    explain."""
    doubts = [
        why
        for doubtful, why in (
            (indication.evidence[0].file == CONTEXT, "reported by the user, not printed by the job"),
            (
                follows_failure(indication, logs),
                "printed after the job had failed, or beside an error of its own: probably a consequence",
            ),
            (
                indication.cause in MAY_FOLLOW and _after_timeout(indication, logs),
                "printed after the timeout, by a rank that had waited: probably a consequence",
            ),
        )
        if doubtful and indication.status != "possible"
    ]
    return (
        dataclasses.replace(indication, status="possible", against=(*indication.against, *doubts))
        if doubts
        else indication
    )


def follows_failure(indication: Indication, logs: Logs) -> bool:
    """Whether the job was ended from outside, and the same file shows a failure above this; a cancellation by
    the scheduler is none. Ranks elsewhere notice a failed node before it is reported, so it follows only an
    error of the program's own code. A list of Kubernetes' events is in no order with the lines around it, and
    may be about other jobs: an error of the program's own comes first."""
    line = indication.evidence[0]
    ends = [*(logs.seen["job-ended"].lines if "job-ended" in logs.seen else ()), logs.failed, logs.timeout]
    own = logs.raised if logs.raised and not _AWAY.search(logs.raised.text) else None
    if indication.cause == "node-failed":
        ends = [own] if OWN_FRAME in logs.seen else []
    return indication.cause in ENDED and (
        own is not None
        if _EVENT.search(line.text)
        else any(
            end is not None
            and end.file == line.file
            and end.line < line.line
            and " CANCELLED AT " not in end.text
            for end in ends
        )
    )


def _after_timeout(indication: Indication, logs: Logs) -> bool:
    """Whether each line of evidence stands below a watchdog line of the same rank."""
    first = {r.rank: (r.timeouts[0].at.file, r.timeouts[0].at.line) for r in logs.ranks if r.timeouts}
    printed = [e for e in indication.evidence if e.file != CONTEXT]
    return bool(printed) and all(
        e.rank in first and e.file == first[e.rank][0] and e.line > first[e.rank][1] for e in printed
    )
