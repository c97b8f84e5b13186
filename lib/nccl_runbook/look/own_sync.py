"""The user's own weight sync seen from outside: stacks of its processes, sampled, and the
phase that each of them shows."""

import os
import time
from typing import Callable, Dict, List, Sequence, Tuple, Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.hang.live import ask_answers
from nccl_runbook.hang.live.facts import Stack
from nccl_runbook.launch.stop import never
from nccl_runbook.sync.facts import ALL_OF_THEM, OwnSync, OwnSyncTime

APART_S = 0.5  # what is shorter is between two tensors of one sync
INTERVAL_S = 0.1
ENGINES = (
    "for vLLM, name EngineCore or its workers; for SGLang, name its schedulers, because server "
    "processes sync no weights"
)
# if one waits for the work of another, that work counts for all
WAITING = ("control", "wire", "other")
# among the threads of one process: one sends while another waits for the answer to its request
IN_ONE = ("wire", "control", "other")


def collect(
    pids: List[int],
    seconds: float,
    phase_of: Callable[[Sequence[str]], str],
    stopped: Callable[[], str] = never,
) -> Union[OwnSync, Gap]:
    """Each sync within ``seconds`` or until ``stopped`` gives a reason, of all these processes together and
    of each. A sync that runs at the beginning or end is cut. ``phase_of``: sync.judge.phase_of. Stops no
    process: py-spy reads beside the job. A Gap without permission, or if no sync was seen."""
    py_spy, began = ask_answers.find_py_spy(pids), time.monotonic()
    by_pid: Dict[int, List[Tuple[float, str]]] = {pid: [] for pid in pids}
    left, rounds = list(by_pid), []
    while left and time.monotonic() < began + seconds and not stopped():
        for pid in list(left):
            answer = ask_answers.stacks(py_spy, pid, began + seconds - time.monotonic())
            if not isinstance(answer, Gap):
                _add(by_pid[pid], time.monotonic() - began, answer, phase_of)
            elif by_pid[pid] and not os.path.exists(f"/proc/{pid}/root"):  # a zombie has none either
                left.remove(pid)
            # later one moment may fail: beside a running process py-spy now and then reads what just changes
            elif not by_pid[pid]:
                return Gap(answer.reason, f"the stacks of {pid} cannot be read: {answer.detail}")
        rounds.append((time.monotonic() - began, {pid: by_pid[pid][-1][1] for pid in left}))
        time.sleep(INTERVAL_S)
    silent = ", ".join(str(pid) for pid, samples in by_pid.items() if not any(phase for _, phase in samples))
    name = ALL_OF_THEM + (f", but the stacks of {silent} showed no sync ({ENGINES})" if silent else "")
    syncs = syncs_of(name, together(rounds)) if len(by_pid) > 1 else []
    syncs += [sync for pid, samples in by_pid.items() for sync in syncs_of(f"pid {pid}", samples)]
    return (
        OwnSync(syncs)
        if syncs
        else Gap(
            "absent",
            f"the stacks of {silent} showed no function that syncs weights in {seconds:.0f} s "
            f"({ENGINES}). Wrap your own sync function in pause_trace() of nccl_guards.py",
        )
    )


def _add(
    samples: List[Tuple[float, str]],
    at_s: float,
    stacks: List[Stack],
    phase_of: Callable[[Sequence[str]], str],
) -> None:
    """One more sample of a process. Half a stack, as py-spy sees now and then beside a running
    process, is no end of a sync."""
    phase = joint([phase_of([f"{f.function} {f.file}" for f in stack.frames]) for stack in stacks], IN_ONE)
    # CPython's outermost frames
    whole = not stacks or (
        stacks[0].frames[-1:]
        and stacks[0].frames[-1].function.rpartition(".")[2]
        in ("<module>", "_run_module_as_main", "_bootstrap")
    )
    if phase or whole or not samples or at_s - samples[-1][0] > APART_S:
        samples.append((at_s, phase))


def joint(phases: Sequence[str], waiting: Sequence[str] = WAITING) -> str:
    """Phase of a sync whose processes (or threads) are in these phases; empty outside a sync."""
    return ([p for p in phases if p and p not in waiting] + [p for p in waiting if p in phases] + [""])[0]


def together(rounds: Sequence[Tuple[float, Dict[int, str]]]) -> List[Tuple[float, str]]:
    """(seconds, phase of all processes) from the phase of each pid. A process that always waits for answers
    (a driver in ray.get()) counts only if no other is in a sync. A process alone on the wire waits for the
    message that brings the other one there."""
    named = {pid for _, phases in rounds for pid, phase in phases.items() if phase not in ("", "control")}
    rows = [
        (at_s, [phase for pid, phase in phases.items() if pid in named], list(phases.values()))
        for at_s, phases in rounds
    ]
    return [
        (
            at_s,
            "control"
            if joint(at) == "wire" and at.count("wire") == 1 and "" in at
            else joint(at) or joint(every),
        )
        for at_s, at, every in rows
    ]


def syncs_of(name: str, samples: Sequence[Tuple[float, str]]) -> List[OwnSyncTime]:
    """Syncs in ``samples``: (seconds after the watch began, phase or empty). Each phase gets the time since
    the sample before."""
    inside, syncs = [number for number, (_, phase) in enumerate(samples) if phase], []
    begins = inside[:1] + [
        n
        for before, n in zip(inside, inside[1:])
        if n - before > 1 and samples[n][0] - samples[before][0] > APART_S
    ]
    for begin, following in zip(begins, [*begins[1:], len(samples)]):
        during, phases = samples[begin : max(n for n in inside if n < following) + 1], {}
        for (before_s, _), (at_s, phase) in zip([*during[:1], *during], during):
            phases[phase or "other"] = round(phases.get(phase or "other", 0.0) + at_s - before_s, 3)
        syncs.append(
            OwnSyncTime(
                -1, phases, f"{name}, stacks from {during[0][0]:.1f} to {during[-1][0]:.1f} s of the watch"
            )
        )
    return syncs
