"""What every indication from the table of ranks to a cause needs."""

import re
import shlex

from nccl_runbook.causes.causes import Advice
from nccl_runbook.logs.facts import LogLine
from nccl_runbook.messages.clues import PRINTED, compiled
from nccl_runbook.messages.facts import CONTEXT, Logs, RankLog


def waiting_ranks(logs: Logs) -> list[RankLog]:
    """Ranks whose watchdog reported a timeout."""
    return [r for r in logs.ranks if r.timeouts]


def traceback_advice(line: LogLine, logs: Logs) -> Advice:
    """An exception says more in the lines above it, if the log has its traceback."""
    shown = f"sed -n '{max(1, line.line - 40)},{line.line}p' {shlex.quote(line.file)}"
    return (
        Advice()
        if line.file == CONTEXT or "traceback" not in logs.seen
        else Advice(decides=("by hand", "the traceback above that line", shown))
    )


def matches(logs: Logs, message: str) -> list[tuple[re.Match[str], LogLine]]:
    """Lines of one expression of PRINTED, each with its match."""
    return [
        (match, line)
        for line in (logs.seen[message].lines if message in logs.seen else [])
        if (match := compiled(PRINTED[message]).search(line.text))
    ]
