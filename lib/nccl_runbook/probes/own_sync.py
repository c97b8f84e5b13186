"""The user's own weight sync seen from outside: stacks of its processes, sampled, and the phase that each of them shows."""
from __future__ import annotations

import itertools
import time
from typing import Callable, Dict, List, Sequence, Tuple, Union

from nccl_runbook.facts import Gap
from nccl_runbook.facts.sync import ALL_OF_THEM, OwnSync, OwnSyncTime
from nccl_runbook.launch import stop
from nccl_runbook.probes import live_answers, live_processes

INTERVAL_S = 0.1
WAITING = ("control", "wire", "other")  # where one waits for what another one does: that is what counts for all of them together


def collect(pids: List[int], seconds: float, phase_of: Callable[[Sequence[str]], str]) -> Union[OwnSync, Gap]:
    """Each sync within so many seconds, or until a signal, of all these processes together and of each; one that runs at the beginning
    or the end is cut there. ``phase_of``: knowledge.sync_choice.phase_of. Nothing is stopped: py-spy reads beside the job. A Gap where
    it may not, or saw no sync."""
    py_spy, began = live_answers.find_py_spy(pids), time.monotonic()
    seen: Dict[int, List[Tuple[float, str]]] = {pid: [] for pid in pids}
    left, together = list(seen), []
    while left and time.monotonic() < began + seconds and not stop.why():
        for pid in list(left):
            found = live_answers.stacks(py_spy, pid)
            if not isinstance(found, Gap):
                phases = (phase_of([f"{f.function} {f.file}" for f in stack.frames]) for stack in found)
                seen[pid].append((time.monotonic() - began, next(filter(None, phases), "")))
            elif seen[pid] and _has_ended(pid):
                left.remove(pid)
            elif not seen[pid]:  # later one moment may fail: beside a running process py-spy now and then reads what just changes
                return Gap(found.reason, f"the stacks of {pid} cannot be read: {found.detail}")
        together.append((time.monotonic() - began, joint([seen[pid][-1][1] for pid in left])))
        time.sleep(INTERVAL_S)
    syncs = syncs_of(ALL_OF_THEM, together) if len(seen) > 1 else []
    syncs += [sync for pid, samples in seen.items() for sync in syncs_of(f"pid {pid}", samples)]
    nothing = f"no function that syncs weights was on the stacks of {', '.join(map(str, pids))} in {seconds:.0f} s"
    return OwnSync(syncs) if syncs else Gap("absent", f"{nothing}; wrap yours in pause_trace() of nccl_guards.py")


def _has_ended(pid: int) -> bool:
    try:
        return live_processes.stat_fields(f"/proc/{pid}/stat")[0] == "Z"
    except OSError:
        return True


def joint(phases: Sequence[str]) -> str:
    """What a sync is at while its processes are in these phases, "" outside of one."""
    at_work = [p for p in phases if p and p not in WAITING]
    return (at_work + [p for p in WAITING if p in phases] + [""])[0]


def syncs_of(name: str, samples: Sequence[Tuple[float, str]]) -> List[OwnSyncTime]:
    """``samples``: seconds after the watch began, and the phase, "" outside a sync. The time since the sample before counts for each."""
    found = []
    for is_sync, together in itertools.groupby(samples, key=lambda sample: bool(sample[1])):
        during, phases = list(together) if is_sync else [], {}
        for (before_s, _), (at_s, phase) in zip(during[:1] + during, during):
            phases[phase] = round(phases.get(phase, 0.0) + at_s - before_s, 3)
        if during:
            found.append(OwnSyncTime(-1, phases, f"{name}, stacks from {during[0][0]:.1f} to {during[-1][0]:.1f} s of the watch"))
    return found
