"""What a look at the living ranks says of a hang where nothing that was left decides."""

from __future__ import annotations

import dataclasses
from typing import Any

from nccl_runbook.core.findings import Evidence
from nccl_runbook.hang.facts import Hang
from nccl_runbook.hang.live import judge as live
from nccl_runbook.hang.live.judge_joined import together


def by_look(hang: Hang, told: Any) -> Any:
    """The answer, or in place of one that is unknown what a look saw, under the nearest name that a kind has for a hang."""
    picture = next(iter(live.judge(together(hang.looks))), None)
    if picture is None or told.kind != "unknown":
        return told
    kind = {"gil-held": "host-busy", "unreachable": "unknown", "symmetric": "unknown"}.get(picture.kind, picture.kind)
    kind = "unknown" if kind == "healthy" and hang.dumps else kind
    culprits, victims = (tuple(v.rank for v in views if v.rank is not None) for views in (picture.culprits, picture.victims))
    return dataclasses.replace(
        told, kind=kind, culprits=culprits if kind != "unknown" else (), victims=victims, sentence=f"{picture.sentence}.",
        collective=picture.collective, frame=picture.culprits[0].frame if picture.culprits else "", cause=picture.cause,
        status=picture.status or None, decides=picture.decides,
        evidence=(*(Evidence(s.text, s.source) for s in picture.evidence), *told.evidence))
