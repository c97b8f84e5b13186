"""The allocation string that a reader of 05-weight-sync names, on the GPUs that are seen here."""
from __future__ import annotations

import dataclasses

from nccl_runbook.facts import Gap
from nccl_runbook.knowledge.allocation import newest
from nccl_runbook.planning.allocation import Refused, parse
from nccl_runbook.planning.groups import Placed, Site, place
from nccl_runbook.planning.placement import Placement


@dataclasses.dataclass(frozen=True)
class Intended:
    """``text``: "" where no allocation was named; ``gpus``: seen here; ``placed``: None where the newest known tag refuses the text."""

    text: str
    gpus: int
    placed: Placed | None = None


def intend(text: str, seen: Placement | Gap) -> Intended | Gap:
    """Where AReaL's local launcher would put it on the GPUs that ``seen`` is placed on. A Gap where there is none, and a text."""
    gpus = 0 if isinstance(seen, Gap) else len({d for d in seen.devices if d is not None})
    if text.strip() and not gpus:
        return Gap("not-run", "no GPU is visible here, or none was looked at; nccl-runbook plan --gpus N plans for any machine")
    try:
        return Intended(text, gpus, place(parse(text, newest()), Site(gpus))) if text.strip() else Intended("", gpus)
    except Refused:
        return Intended(text, gpus)
