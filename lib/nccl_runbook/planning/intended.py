"""The allocation string that a reader of 05-weight-sync names, on the GPUs that are seen here."""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from nccl_runbook.facts import Gap
from nccl_runbook.knowledge.allocation import newest
from nccl_runbook.planning.allocation import Refused, parse
from nccl_runbook.planning.groups import Placed, Site, place


@dataclasses.dataclass(frozen=True)
class Intended:
    """``text``: "" where no allocation was named; ``gpus``: seen here; ``placed``: None where the newest known tag refuses the text."""

    text: str
    gpus: int
    placed: Placed | None = None


def intend(text: str, devices: Sequence[int | None]) -> Intended | Gap:
    """Where AReaL's local launcher would put it; ``devices``: as Step.devices gives them. A Gap where no GPU is seen."""
    gpus = sum(d is not None for d in devices)
    if not text.strip():
        return Intended("", gpus)
    if not gpus:
        return Gap("not-run", "no GPU is visible here: nccl-runbook plan --gpus N plans for another machine")
    try:
        return Intended(text, gpus, place(parse(text, newest()), Site(gpus)))
    except Refused:
        return Intended(text, gpus)
