"""What one rank does, by a few samples of its process: waits in a collective, works,
sleeps elsewhere, is stopped.

And the picture of a job that is made of such ranks. Python >= 3.9.
"""

import dataclasses
import re
from typing import Optional

from nccl_runbook.core.facts import Gap, known
from nccl_runbook.hang.live.facts import (
    Live,
    LiveRank,
    Stack,
    Thread,
)
from nccl_runbook.hang.live.ranks.judge_calls import gpu_of, launches
from nccl_runbook.hang.live.ranks.judge_picture import RankView
from nccl_runbook.hang.live.ranks.judge_stacks import (
    BUSY_SHARE,
    GIL_SAMPLES,
    INIT,
    LIBRARY,
    STILL_CPU_S,
    holds_gil,
    main_stacks,
    places,
    share,
    waits_in,
    words_of,
)

STILL_SWITCHES_PER_S = 3  # a wake-up now and then; a step of 200 ms makes at least ten
# a step of 200 ms falls into it more than once, also where the samples are closer together than the steps
LAST_S = 1.0
STILL_SHARE = 0.95  # of the moments in between; the others were the wake-ups
GPU_BUSY = 90  # percent of NVML's utilisation; an NCCL kernel that waits counts as busy

ON_A_LOCK = re.compile(r"futex")
HOST_WORK = re.compile(r"save|checkpoint|serializ|tokeniz|evaluat|download|load_?data|data_?load", re.I)


def view(rank: LiveRank, look: Live) -> RankView:
    """What one rank did over the samples, by its main thread (or, if that only joins others, by a thread
    that is in a collective in every sample)."""
    stack = next(reversed(main_stacks(rank)), None)
    where = waits_in(stack) if stack else ""
    does = _does(rank, look, stack, where)
    # sleep() has no frame of its own; join() and waits for a queue have one
    if does == "asleep" and stack and any(LIBRARY.search(f.file) for f in stack.frames[:1]):
        inside = (
            {s.tid for s in sample.stacks if waits_in(s)}
            for sample in rank.samples
            if not isinstance(sample.stacks, Gap)
        )
        if working := set.intersection(*inside):
            return dataclasses.replace(view(_led_by(min(working), rank), look), process=rank)
    helper = next(filter(None, map(at_work, rank.children)), "") if does in ("busy", "asleep") else ""
    return RankView(
        rank=rank.rank,
        host=look.host,
        pid=rank.pid,
        does=does,
        frame=words_of(stack),
        where=numbered(rank, where, does),
        has_gil=holds_gil(rank),
        helper=helper,
        process=rank,
    )


def at_work(helper: Stack) -> str:
    """What a rank's child process is and does; empty for an idle data loader."""
    parts = {f.file.rpartition("/torch/utils/data/_utils/")[2] for f in helper.frames}  # torch 2.2 to 2.13
    if "worker.py" in parts and "fetch.py" not in parts:
        return ""
    name = (
        f"its data loader's process {helper.tid}"
        if "worker.py" in parts
        else f"its process {helper.tid} ({helper.name})"
    )
    return name + (f", which is in {words_of(helper)}" if helper.frames else "")


def _led_by(tid: int, rank: LiveRank) -> LiveRank:
    """The rank with this thread in the place of the main one."""
    return dataclasses.replace(
        rank,
        samples=[
            dataclasses.replace(
                s,
                threads=sorted(s.threads, key=lambda thread: thread.tid != tid),
                stacks=s.stacks
                if isinstance(s.stacks, Gap)
                else sorted(s.stacks, key=lambda stack: stack.tid != tid),
            )
            for s in rank.samples
        ],
    )


def numbered(rank: LiveRank, where: str, does: str) -> str:
    """ "all_reduce 4711", if the flight recorder has that call as its group's newest, incomplete one; else
    the call alone."""
    opened = [
        f"{g.op} {g.enqueued}"
        for g in known(rank.recorder)
        if g.enqueued is not None and g.enqueued != g.completed and (where == g.op or does == "device")
    ]
    return opened[0] if len(opened) == 1 else where


def _does(rank: LiveRank, look: Live, stack: Optional[Stack], where: str) -> str:
    if not rank.samples or "gone" in rank.main_thread or rank.samples[-1].threads[0].state in ("Z", "X"):
        return "missing"
    if all(s.threads[0].state in "Tt" for s in rank.samples):
        return "stopped"
    if not rank.has_torch:
        return "starting"
    gpu, counts = gpu_of(rank, look), launches(rank, look) or (0, 0)
    gpu_busy = (
        rank.nccl and gpu and all(not isinstance(u, Gap) and u >= GPU_BUSY for u in gpu.utilisation_percent)
    )
    calls, spots = [waits_in(s) for s in main_stacks(rank)], len(set(places(rank)))
    on_cpu = share(rank, lambda what: what[:1] in "RD") >= BUSY_SHARE
    if counts[1] > counts[0] or (gpu_busy and spots > 1):
        return "moving"
    if gpu_busy:
        return "device"
    if is_still(rank):
        return _still(rank.samples[-1].threads[0], stack, where)
    if calls and INIT.issuperset(calls):  # rank 0 looks into its store again and again
        return "waits"
    if on_cpu and not any(calls):
        return "busy"
    if on_cpu and all(calls) and len(calls) >= GIL_SAMPLES and spots == 1:
        return "spins"
    return "moving" if moved_last(rank) else "unknown"


def is_still(rank: LiveRank) -> bool:
    """Whether the main thread only waited, in one place, from the second sample to the last."""
    first, last = rank.samples[min(1, len(rank.samples) - 1)], rank.samples[-1]
    before, after, moments = first.threads[0], last.threads[0], sum(rank.main_thread.values())
    longest = max((n for what, n in rank.main_thread.items() if what[:1] in "SDTt"), default=0)
    return (
        moments > 0
        and longest >= STILL_SHARE * moments
        and after.cpu_s - before.cpu_s <= STILL_CPU_S
        and after.switches - before.switches <= STILL_SWITCHES_PER_S * (last.at_s - first.at_s)
        and len(set(places(rank))) <= 1
    )


def _still(thread: Thread, stack: Optional[Stack], where: str) -> str:
    """What a thread that does not move does. Asleep in the kernel for anything but a lock is no collective;
    on a lock it is one if torch.distributed is above it, or nothing of Python's own (`work.wait()` has no
    frame)."""
    frames, on_lock = stack.frames if stack else [], ON_A_LOCK.search(thread.waits)
    words = [word for f in frames for word in (f.function, f.file.rpartition("/")[2])]
    if where:
        return "waits"
    if stack is None and not thread.waits:
        return "unknown"
    if stack is None and on_lock:
        return "lock"
    if any(map(HOST_WORK.search, words)):
        return "busy"
    return "waits" if on_lock and frames and not LIBRARY.search(frames[0].file) else "asleep"


def moved_last(rank: LiveRank) -> bool:
    """Whether the main thread ran in the last second of the samples, without coming to rest."""
    last = rank.samples[-1]
    before = next((s for s in reversed(rank.samples) if s.at_s <= last.at_s - LAST_S), rank.samples[0])
    return (
        last.threads[0].cpu_s > before.threads[0].cpu_s
        or last.threads[0].switches > before.threads[0].switches + 2
    )
