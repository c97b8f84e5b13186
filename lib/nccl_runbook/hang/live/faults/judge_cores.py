"""Ranks that had no CPU core: they look late, slow or busy, and may be none of these."""

import dataclasses
import math
from typing import Optional, Tuple

from nccl_runbook.core.facts import Evidence, counted
from nccl_runbook.hang.live.facts import LiveRank
from nccl_runbook.hang.live.judge_ranks import ON_A_LOCK, is_still
from nccl_runbook.hang.live.ranks.judge_picture import Picture, RankView, names
from nccl_runbook.hang.live.ranks.judge_stacks import share

# how far the shares of two ranks that do the same may be apart: one is at most sqrt(0.5 / moments)
STANDARD_ERRORS = 3
# what a rank that waits for a CPU core looks like, too
LATE = ("skipped", "slow", "host-busy", "gil-held", "gpu-stuck", "unknown")


def waits_share(view: RankView) -> float:
    """Share of the moments in which the main thread waited on a lock, 0 to 1; 0 for a missing rank."""
    return share(view.process, lambda what: bool(ON_A_LOCK.search(what))) if view.process else 0.0


def may_be_chance(
    base: Picture, least: Tuple[float, RankView], next_share: float, shown: str
) -> Optional[Picture]:
    """An undecided picture if the look has too few moments to tell the two shares apart; else None."""
    moments = min(sum(v.process.main_thread.values()) for v in base.ranks if v.process)
    if next_share - least[0] >= STANDARD_ERRORS * math.sqrt(0.5 / moments):
        return None
    return dataclasses.replace(
        base,
        decides="python3 nccl-look.pyz --live --gap 60",
        sentence=f"{least[1].name} may be slow: {shown}. This can be chance, because the look took "
        f"only {counted(moments, 'sample')}. If a longer look does, too, the CPU cores are overloaded",
    )


def without_core(rank: LiveRank) -> float:
    """Share of the time between the second sample and the last in which the main thread was ready to run and
    had no CPU core, 0 to 1."""
    first, last = rank.samples[min(1, len(rank.samples) - 1)], rank.samples[-1]
    ready_s = last.threads[0].ready_s - first.threads[0].ready_s
    return min(1.0, ready_s / max(last.at_s - first.at_s, 1e-9))


def short_of_cores(base: Picture, picture: Picture) -> Picture:
    """The picture; one that accuses nobody if a culprit had no CPU core for most of the time in which it did
    not wait for others. Without culprits: with the ranks that had no core for most of the time."""
    late = picture.culprits
    shares = [
        (without_core(v.process), v)
        for v in late or picture.ranks
        if v.process and v.does != "missing" and not is_still(v.process)
    ]
    slowed = [(part, v) for part, v in shares if part > (1 - waits_share(v) if late else 1) / 2]
    if not slowed or (late and picture.kind not in LATE):
        return picture
    first, least = slowed[0][1], min(part for part, _ in slowed)
    shown = (
        f"{names([v for _, v in slowed])} had no CPU core for at least {least:.0%} of the time, although "
        "ready to run"
    )
    why = f"{shown}. Other processes use these cores, or an affinity mask or a container limit leaves too few"
    evidence = Evidence(shown, f"/proc/{first.pid}/schedstat on {first.host}")
    decides = f"taskset -pc {first.pid}; cat /sys/fs/cgroup/cpu.stat /proc/pressure/cpu"
    if late:
        return dataclasses.replace(
            base,
            sentence=f"it is not known whether {first.name}, last in {first.frame or 'its own code'}, is at "
            f"fault: {why}",
            evidence=[evidence],
            cause="cpu-affinity",
            status="possible",
            decides=decides,
        )
    if not picture.cause and picture.kind != "healthy":
        picture = dataclasses.replace(picture, cause="cpu-affinity", status="possible", decides=decides)
    return dataclasses.replace(
        picture,
        sentence=f"{picture.sentence}; {why}",
        evidence=[*picture.evidence, evidence],
    )
