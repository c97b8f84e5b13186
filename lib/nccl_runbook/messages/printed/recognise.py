"""Which message of the catalogue the ranks of a failed test printed or raised."""

import dataclasses
import io
from collections.abc import Mapping

from nccl_runbook.causes.causes import Advice, Cause, fitting
from nccl_runbook.core.findings import STATUSES
from nccl_runbook.logs.source import Source
from nccl_runbook.messages.clues import SLOW, clues
from nccl_runbook.messages.judge import Indication, fires, points_to
from nccl_runbook.messages.read import read_sources

SHARED_GPU = "nccl-duplicate-gpu-detected"  # NCCL refuses two ranks on one GPU


def recognise(texts: Mapping[str, str]) -> Indication | None:
    """The message that makes a cause most certain; None if the catalogue knows no reason. ``texts``: who
    printed -> what."""
    raws = {name: text.encode("utf-8", "replace") for name, text in texts.items()}
    logs = read_sources(Source(name, len(raw), io.BytesIO(raw)) for name, raw in raws.items())
    indications = [
        points_to(clue, logs)
        for clue in clues()
        # these are no reason why a test of ours fails: how its ranks ended is known without a message
        if clue.cause not in SLOW | {"benign", "peer-crashed"} and not clue.words and fires(clue, logs)
    ]
    return min(indications, key=lambda p: (STATUSES.index(p.status), p.place), default=None)


def own_words(indication: Indication) -> Cause:
    """The cause with the message's own advice. What the message says in a sentence is its title."""
    own = {part: text for part, text in vars(indication.advice or Advice()).items() if text}
    title = {"title": own["says"].split(". ")[0].rstrip(".")} if "says" in own else {}
    return dataclasses.replace(fitting(indication.cause, indication.evidence[0].text), **own, **title)
