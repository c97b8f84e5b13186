"""Which message of the catalogue the ranks of a failed test printed or raised."""

import dataclasses
import io
from collections.abc import Mapping

from nccl_runbook.causes.causes import Advice, Cause, fitting
from nccl_runbook.core.findings import STATUSES
from nccl_runbook.logs.source import Source
from nccl_runbook.messages.clues import SLOW, clues
from nccl_runbook.messages.judge import fires, points_to
from nccl_runbook.messages.read import read_sources

SHARED_GPU = "nccl-duplicate-gpu-detected"  # NCCL refuses two ranks on one GPU
# no reason why a test of ours fails: how its ranks ended is known without a message
_NO_REASON = SLOW | {"benign", "peer-crashed"}


@dataclasses.dataclass(frozen=True)
class Recognised:
    """A message that names a cause. ``cause``: with the message's own advice; ``why``: the same in a few
    words; ``status``: how sure the message alone makes it; ``line``: as printed; ``printed_by``: a key of
    the texts; ``message``: its id."""

    cause: Cause
    why: str
    status: str
    line: str
    printed_by: str
    message: str


def recognise(texts: Mapping[str, str]) -> Recognised | None:
    """The message that makes a cause most certain. ``texts``: who printed -> what; None if the catalogue
    knows no reason."""
    raws = {name: text.encode("utf-8", "replace") for name, text in texts.items()}
    logs = read_sources(Source(name, len(raw), io.BytesIO(raw)) for name, raw in raws.items())
    named = [
        (clue, points_to(clue, logs))
        for clue in clues()
        if clue.cause not in _NO_REASON and not clue.words and fires(clue, logs)
    ]
    if not named:
        return None
    clue, surest = min(named, key=lambda pair: (STATUSES.index(pair[1].status), pair[1].place))
    line = surest.evidence[0]
    cause = fitting(surest.cause, line.text)
    own = {part: text for part, text in vars(surest.advice or Advice()).items() if text}
    return Recognised(
        dataclasses.replace(cause, **own),
        str(own.get("says", cause.title)).split(". ")[0].rstrip("."),
        surest.status,
        line.text,
        line.file,
        clue.message,
    )
