"""Logs of several attempts: what ended the last one leads."""

import dataclasses

from nccl_runbook.messages.clues import ECHO, SLOW, clues
from nccl_runbook.messages.facts import Logs
from nccl_runbook.messages.judge import Indication, is_earlier
from nccl_runbook.triage.hypotheses.judge_weights import indications, survived


def pointers(logs: Logs) -> list[Indication]:
    """What messages and ranks point to. If an error ended the last of several attempts, what only an earlier
    attempt printed is possible at most and comes last."""
    every = [*indications(logs), *survived(logs)]
    last = indications(_last_attempt(logs)) if logs.again else []
    if not any(_ended_again(p, logs) for p in last):
        return every
    why = "printed in an earlier attempt, and another error ended the last attempt"
    earlier = [
        dataclasses.replace(p, status="possible", against=(*p.against, why), place=p.place + 1000)
        for p in every
        if p not in last and p.cause != "benign" and is_earlier(p.evidence[0], logs)
    ]
    return [*last, *survived(logs), *earlier]


def _last_attempt(logs: Logs) -> Logs:
    """The facts without the errors that only attempts before the last restart printed. What the job only
    runs with stays, and so does a fault of the hardware, unless the ranks went further after it."""
    errors = {c.message for c in clues() if c.cause not in SLOW | {"benign", "gpu-or-link-fault"}}
    left_out = {
        i
        for i, message in logs.seen.items()
        if (i in errors or "/not-" in i or message.resumed) and is_earlier(message.lines[0], logs)
    }
    return dataclasses.replace(logs, seen={i: s for i, s in logs.seen.items() if i not in left_out})


def _ended_again(indication: Indication, logs: Logs) -> bool:
    """Whether this is an error, not the loss of a peer, that probably ended the last of several attempts."""
    line = indication.evidence[0]
    return (
        (indication.status != "possible" or line == logs.raised)
        and indication.cause not in SLOW | {"benign"}
        and any(line.file == again.file and line.line > again.line for again in logs.again)
        and not ECHO.search(line.text)
    )
