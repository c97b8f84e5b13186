"""Ranks that are slow, or whose GPU does not finish; and jobs that move."""

import dataclasses
import statistics
from typing import List, Optional

from nccl_runbook.core.facts import Evidence, Gap, counted, rank_names
from nccl_runbook.hang.live.facts import LiveGpu
from nccl_runbook.hang.live.faults.judge_cores import may_be_chance, waits_share
from nccl_runbook.hang.live.faults.judge_paths import Members
from nccl_runbook.hang.live.judge_hosts import missing_ranks, unseen
from nccl_runbook.hang.live.judge_ranks import is_still
from nccl_runbook.hang.live.ranks.judge_calls import gpu_of, launches
from nccl_runbook.hang.live.ranks.judge_picture import Picture, RankView, accuse, all_wait, stack_line
from nccl_runbook.hang.live.ranks.judge_stacks import polls

# shares of time in waits that tell a straggler: one of 200 ms at steps of 220 ms waited 4 %, the others
# at least 93 % (Gloo, 4 ranks)
WAITS_MOST, WAITS_LEAST, APART = 0.6, 0.4, 0.35
# percent of NVML's utilisation, in both samples; ranks that wait for another in a collective show 100,
# it 0 to 1 (4 H200, NCCL 2.28.9)
IDLE_MOST, RUNS_LEAST = 30, 75
# 4 H200, NCCL 2.28.9: GPUs that waited in an all_reduce drew 200 to 209 W, one that spun in another
# kernel 122 W, all at 100 %
ODD_POWER, EVEN_POWER = 0.2, 0.1

STALL_S = 5.0  # a batch that takes longer than a look of this length leaves the GPUs idle


def gpu_stuck(base: Picture, members: Members) -> Optional[Picture]:
    """All GPUs are busy and all ranks launched the same, but one GPU draws a different power: it runs
    something else. Else None."""
    drawn = {
        (look.host, r.pid): gpu.power_w[-1]
        for r, look in members
        if (gpu := gpu_of(r, look)) and not isinstance(gpu.power_w[-1], Gap)
    }
    if len(drawn) < len(base.ranks) or any(v.does != "device" for v in base.ranks):
        return None
    middle = statistics.median(drawn.values())
    odd = [v for v in base.ranks if abs(drawn[v.host, v.pid] - middle) > ODD_POWER * middle]
    others = [watt for watt in drawn.values() if abs(watt - middle) <= ODD_POWER * middle]
    if len(odd) != 1 or max(others) - min(others) > EVEN_POWER * middle:
        return None
    shown = (
        f"{drawn[odd[0].host, odd[0].pid]:.0f} W, while the other GPUs draw {min(others):.0f} to "
        f"{max(others):.0f} W, all at 100 % utilisation"
    )
    still = Evidence(
        "all ranks launched the same number of collectives, and no rank launched a further collective "
        "between the samples",
        "NCCL RAS",
    )
    evidence = [Evidence(f"power: {shown}", "NVML"), *([still] if stands_still(members) else [])]
    return accuse(
        base,
        "gpu-stuck",
        odd,
        f"reached the collective, but its GPU still runs a different kernel: this GPU draws {shown}",
        cause=None,
        status="likely" if len(evidence) > 1 else "possible",
        observed=evidence,
    )


def stands_still(members: Members) -> bool:
    """NCCL's RAS shows that all ranks launched as many collectives, and none between the samples."""
    return len({launches(r, look) for r, look in members}) == 1 and launches(*members[0]) is not None


def slow_rank(base: Picture, members: Members) -> Optional[Picture]:
    """One rank waits least while all others mostly wait: they wait for it at every step. Unknown if this may
    be chance, because the look has few moments."""
    waits = sorted(((waits_share(v), v) for v in base.ranks), key=lambda row: row[0])
    if (
        len(waits) < 2
        or waits[0][0] > WAITS_LEAST
        or waits[1][0] < WAITS_MOST
        or waits[1][0] - waits[0][0] < APART
    ):
        return None
    shown = (
        f"it waits {waits[0][0]:.0%} of the time, while the other ranks wait at least "
        f"{waits[1][0]:.0%} of the time"
    )
    return may_be_chance(base, waits[0], waits[1][0], shown) or _is_slow(
        base, waits[0][1], "likely", Evidence(shown, "main threads, ten moments a second")
    )


def _is_slow(base: Picture, slowest: RankView, status: str, evidence: Evidence) -> Picture:
    return accuse(
        base,
        "slow",
        [slowest],
        f"is slow: {evidence.text}; its stack was last in {slowest.frame or 'its own code'}",
        cause="straggler",
        status=status,
        observed=[evidence],
        decides=f"py-spy top --pid {slowest.pid}",
    )


def slow_by_gpus(base: Picture, members: Members) -> Optional[Picture]:
    """All ranks move, one GPU is mostly idle, and all others always run NCCL's kernel, which waits for that
    rank. Else None."""
    gpus = {(look.host, r.pid): gpu_of(r, look) for r, look in members}  # pids repeat on other hosts
    percents = [(_percents(gpus[v.host, v.pid]), v) for v in base.ranks]
    used = sorted(((max(p), min(p), v) for p, v in percents if len(p) > 1), key=lambda row: row[:2])
    least = min((low for _, low, _ in used[1:]), default=0)
    if (
        any(v.does != "moving" for v in base.ranks)
        or len(used) < max(2, len(base.ranks))
        or (used[0][0] > IDLE_MOST or least < RUNS_LEAST)
    ):
        return None
    shown = (
        f"its GPU is busy at most {used[0][0]} % of the time, while the GPUs of the other ranks are "
        f"busy at least {least} %"
    )
    return _is_slow(base, used[0][2], "possible", Evidence(shown, "NVML"))


def _percents(gpu: Optional[LiveGpu]) -> List[int]:
    return [p for p in gpu.utilisation_percent if not isinstance(p, Gap)] if gpu else []


def loaders_wait(base: Picture, members: Members) -> Optional[Picture]:
    """Every rank stands still over a look of some seconds, and each waits for a process of its data loader
    that does not work either. Else None."""
    seconds = members[0][1].gap_s
    stalled = all(
        "data loader" in v.helper
        and is_still(v.process)
        and not any(child.is_active for child in v.process.children)
        for v in base.ranks
    )
    if not stalled or seconds < STALL_S:
        return None
    first, others = base.ranks[0], unseen(members)
    shown = [Evidence(f"{v.name} waits for {v.helper}", f"pid {v.pid} on {v.host}") for v in base.ranks[:4]]
    who = "" if len(base.ranks) == 1 else f"{all_wait(base.ranks)} for data: {first.name} "
    return accuse(
        base,
        "unknown" if others else "slow",
        [first] if len(base.ranks) == 1 else [],
        f"{who}waits for {first.helper}. No rank made progress within {seconds:g} s"
        + (f"; the samples show nothing about {others}" if others else ""),
        cause="data-stall",
        status="possible" if others else "likely",
        observed=shown,
        decides=f"py-spy dump --pid {first.pid} --subprocesses",
    )


def all_moving(base: Picture, members: Members) -> Picture:
    """The picture of a job whose ranks all move or work. Without a rank that moves it is not called
    healthy."""
    seconds = f"{members[0][1].gap_s:g} s"
    if all(polls(r) for r, _ in members):
        return dataclasses.replace(
            base,
            decides=stack_line(base.ranks),
            sentence=(
                f"no progress was visible within {seconds}. {base.ranks[0].name} mostly sleeps, at "
                f"{base.ranks[0].frame}. This rank may wait for a file, or pause between steps"
            ),
        )
    busy = [v for v in base.ranks if v.does == "busy"]
    works = (
        f"{len(busy)} of {counted(len(base.ranks), 'rank')} run code on the CPU, the first in "
        f"{busy[0].frame or 'its own code'}"
        if busy
        else ""
    )
    if busy and all(is_still(v.process) for v in base.ranks):
        return dataclasses.replace(
            base,
            decides="python3 nccl-look.pyz --live --gap 30",
            sentence=f"no rank made progress within {seconds}: {works}. Run this command again to see "
            "whether the job continues",
        )
    verdict = (
        f"no rank waits in a collective: {works}"
        if busy
        else f"not hung: {counted(len(base.ranks), 'rank')} made progress between the samples"
    )
    others = unseen(members)
    gone = sorted(missing_ranks(members, []))
    not_shown = f"; the samples show nothing about {others}" if others else ""
    ended = (
        f"; {rank_names(gone)} ended, and no rank waits, which is normal at the end of a job" if gone else ""
    )
    return dataclasses.replace(
        base, kind="unknown" if others or gone else "healthy", sentence=verdict + not_shown + ended
    )
