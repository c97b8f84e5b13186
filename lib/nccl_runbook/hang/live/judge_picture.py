"""What is said of one job that was looked at, and how it is put. Python >= 3.9."""
from __future__ import annotations

import collections
import dataclasses
from typing import Iterable, List, Optional

from nccl_runbook.core.facts import counted
from nccl_runbook.hang.live.judge_ranks import WAITING, RankView


@dataclasses.dataclass(frozen=True)
class Seen:
    """One piece of evidence: what, and where it was seen."""

    text: str
    source: str


@dataclasses.dataclass(frozen=True)
class Picture:
    """One job. ``kind``: skipped, mismatch, slow, dead, stopped, gpu-stuck, gil-held, host-busy, unreachable, symmetric, healthy, unknown;
    ``status``: as of a hypothesis, "" for none; ``decides``: what to do or collect next, as a line to paste."""

    job: str
    kind: str
    sentence: str
    culprits: List[RankView]
    victims: List[RankView]
    ranks: List[RankView]
    world_size: Optional[int] = None
    collective: str = ""
    cause: Optional[str] = None
    status: str = ""
    evidence: List[Seen] = dataclasses.field(default_factory=list)
    not_seen: List[str] = dataclasses.field(default_factory=list)
    decides: str = ""


def told_of(base: Picture, kind: str, accused: List[RankView], why: str, cause: Optional[str], status: str, seen: Iterable[Seen] = (),
          decides: str = "") -> Picture:
    """The picture with its sentence: who did not come, what it does, how many wait for it and where."""
    late = set(accused)
    victims = [v for v in base.ranks if v not in late and v.does in WAITING]
    collective = next(iter(collections.Counter(v.where for v in victims if v.where)), "")
    waiting = f"; {counted(len(victims), 'rank')} wait{'s' if len(victims) == 1 else ''} for {'it' if len(accused) == 1 else 'them'}"
    hosts = sorted({v.host for v in accused})
    where = f" on {', '.join(hosts[:4])}" if len({v.host for v in base.ranks}) > 1 else ""
    sentence = f"{names(accused)}{where} {why}" if accused else why
    sentence += waiting + f" in {collective}" * bool(collective) if victims and accused else ""
    own = [Seen(f"{v.name} waits in {v.frame}", f"pid {v.pid} on {v.host}") for v in victims[:4] if v.frame]
    return dataclasses.replace(base, kind=kind, sentence=sentence, culprits=accused, victims=victims, collective=collective, cause=cause,
                               status=status, evidence=[*seen, *own], decides=decides or stack_line(accused or victims))


def names(views: List[RankView]) -> str:
    numbers = [str(v.rank) if v.rank is not None else f"(pid {v.pid})" for v in views]
    return ("ranks " if len(numbers) > 1 else "rank ") + ", ".join(numbers[:8]) + (f" and {len(numbers) - 8} more" if numbers[8:] else "")


def is_are(accused: List[RankView]) -> str:
    return "is" if len(accused) == 1 else "are"


def stack_line(views: Iterable[RankView]) -> str:
    return next((f"py-spy dump --native --pid {v.pid}" for v in views if v.pid), "")
