"""Logs of several attempts: what ended the last one leads."""

import dataclasses

from nccl_runbook.messages.clues import ECHO, SLOW
from nccl_runbook.messages.facts import Logs
from nccl_runbook.messages.judge import Indication, is_earlier
from nccl_runbook.triage.hypotheses.judge_weights import indications, survived


def pointers(logs: Logs) -> list[Indication]:
    """What messages and ranks point to. If an error ended the last of several attempts, what only an earlier
    attempt printed comes last, and is possible at most."""
    every = indications(logs)
    ended = any(_ended_again(p, logs) for p in every)
    return [*(_left_behind(p, logs) if ended else p for p in every), *survived(logs)]


def _left_behind(indication: Indication, logs: Logs) -> Indication:
    """What an earlier attempt printed. What the job only runs with stays, and so does a fault of the hardware
    unless the ranks went on after it. No restart repairs a device: such a fault is likely still there."""
    is_hardware = indication.cause == "gpu-or-link-fault"
    if (
        (is_hardware and not logs.seen[indication.message].resumed)
        or indication.cause in SLOW | {"benign"}
        or not is_earlier(indication.evidence[0], logs)
    ):
        return indication
    return dataclasses.replace(
        indication,
        status="likely" if is_hardware and indication.status != "possible" else "possible",
        against=(
            *indication.against,
            "printed in an earlier attempt, and another error ended the last attempt",
        ),
        left_behind=True,
    )


def _ended_again(indication: Indication, logs: Logs) -> bool:
    """Whether this is an error, not the loss of a peer, that probably ended the last of several attempts."""
    line = indication.evidence[0]
    return (
        (indication.status != "possible" or line == logs.raised)
        and indication.cause not in SLOW | {"benign"}
        and any(line.file == again.file and line.line > again.line for again in logs.again)
        and not ECHO.search(line.text)
    )
