"""The user's own weight sync seen from outside: stacks of its processes, sampled, and the phase that each of them shows."""
from __future__ import annotations

import time
from typing import Callable, Dict, List, Sequence, Union

from nccl_runbook.facts import Gap
from nccl_runbook.facts.live import Stack
from nccl_runbook.facts.sync import OwnSync, OwnSyncTime
from nccl_runbook.probes import live_answers

INTERVAL_S = 0.1


class _Watched:
    """One process: the sync that it is in, and those before."""

    def __init__(self, pid: int) -> None:
        self.pid, self.samples, self.began, self.last = pid, 0, 0.0, 0.0
        self.phases: Dict[str, float] = {}
        self.syncs: List[OwnSyncTime] = []

    def add(self, at_s: float, phase: str) -> None:
        """What it does ``at_s`` seconds after the watch began; the time since the sample before counts for this one."""
        if phase and not self.phases:
            self.began = self.last = at_s
        if phase:
            self.phases[phase] = self.phases.get(phase, 0.0) + at_s - self.last
        elif self.phases:
            self.end()
        self.samples, self.last = self.samples + 1, at_s

    def end(self) -> None:
        if self.phases:
            when = f"pid {self.pid}, stacks from {self.began:.1f} to {self.last:.1f} s of the watch"
            self.syncs.append(OwnSyncTime(-1, {p: round(s, 3) for p, s in self.phases.items()}, when))
        self.phases = {}


def collect(pids: List[int], seconds: float, phase_of: Callable[[Sequence[str]], str]) -> Union[OwnSync, Gap]:
    """Each sync of these processes within so many seconds; one that runs at the beginning or the end is cut there. ``phase_of``:
    knowledge.sync_choice.phase_of. Nothing is stopped: py-spy reads beside the job. A Gap where it may not, or saw no sync."""
    py_spy, began = live_answers.find_py_spy(pids), time.monotonic()
    watched = left = [_Watched(pid) for pid in dict.fromkeys(pids)]
    while left and time.monotonic() < began + seconds:
        told = [(one, live_answers.stacks(py_spy, one.pid), time.monotonic() - began) for one in left]
        for one, found, at_s in told:
            if isinstance(found, Gap) and not one.samples:
                return Gap(found.reason, f"the stacks of {one.pid} cannot be read: {found.detail}")
            if not isinstance(found, Gap):
                one.add(at_s, next(filter(None, map(phase_of, map(_frames, found))), ""))
        left = [one for one, found, _ in told if not isinstance(found, Gap)]
        time.sleep(INTERVAL_S)
    for one in watched:
        one.end()
    syncs = [sync for one in watched for sync in one.syncs]
    nothing = f"no function that syncs weights was on the stacks of {', '.join(map(str, pids))} in {seconds:.0f} s"
    return OwnSync(syncs) if syncs else Gap("absent", f"{nothing}; wrap yours in pause_trace() of nccl_guards.py")


def _frames(stack: Stack) -> List[str]:
    return [f"{f.function} {f.file}" for f in stack.frames]
