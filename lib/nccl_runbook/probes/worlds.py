"""Worlds of checked collectives: 1, 2, ... N ranks, each GPU alone, each pair, and one transport at a time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Dict, List, Optional, Union

from nccl_runbook.facts import Gap
from nccl_runbook.facts.experiments import Arm, Arms, Ladder, Pair, Pairs, Singles, Trial
from nccl_runbook.facts.world import WorldRequest
from nccl_runbook.launch.engine import Engine

# NCCL's log goes to the rank's own output at INFO: without it nothing proves that a toggle acted. The user's file and subsystem filter
# would hide it, so they are left out.
LOGGED: Dict[str, Optional[str]] = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": None, "NCCL_DEBUG_SUBSYS": None}
MIB = 1 << 20
GPU_SIZES, CPU_SIZES = (4, 16 * MIB, 256 * MIB), (4, MIB)
GPU_DEADLINE_S, CPU_DEADLINE_S = 30.0, 15.0
INFINIBAND = Path("/sys/class/infiniband")


def on_gpus(devices: List[Optional[int]]) -> bool:
    return devices[0] is not None


def request(
    name: str,
    devices: List[Optional[int]],
    left_s: float,
    env: Optional[Dict[str, Optional[str]]] = None,
    ops: str = "barrier,all_reduce,broadcast,all_gather,send_recv",
    sizes: Optional[tuple] = None,
) -> WorldRequest:
    """One world of checked collectives; its deadline fits GPUs or the CPU and what is left of the budget."""
    gpu = on_gpus(devices)
    chosen = sizes or (GPU_SIZES if gpu else CPU_SIZES)
    deadline_s = min(GPU_DEADLINE_S if gpu else CPU_DEADLINE_S, max(2.0, left_s))
    args = ["--ops", ops, "--sizes", ",".join(map(str, chosen)), "--repeats", "3", "--backend", "nccl" if gpu else "gloo"]
    return WorldRequest(name, "check.py", devices, args, {**(LOGGED if gpu else {}), **(env or {})}, deadline_s)


def trials(engine: Engine, requests: List[WorldRequest], repeat: bool = True) -> List[Trial]:
    """Run these at the same time; then what did not pass once more at the same time, in fresh processes (``repeat``)."""
    worlds = engine.run_all(requests)
    failed = [r for r, w in zip(requests, worlds) if repeat and not w.passed]
    again = dict(zip([r.name for r in failed], engine.run_all(failed)))
    return [Trial(r.name, w, again.get(r.name)) for r, w in zip(requests, worlds)]


def world_sizes(most: int) -> List[int]:
    """1, 2, ... N up to eight, then powers of two and N."""
    return list(range(1, most + 1)) if most <= 8 else sorted({*range(1, 9), *(1 << k for k in range(4, most.bit_length())), most})


def ladder(engine: Engine, devices: List[Optional[int]], budget_s: float) -> Ladder:
    """Worlds of growing size until one fails or the budget (seconds) is spent."""
    began, rungs = time.monotonic(), []
    wanted = world_sizes(len(devices))
    for size in wanted:
        left_s = budget_s - (time.monotonic() - began)
        if left_s <= 0:
            break
        rungs += trials(engine, [request(f"{size} rank{'s' if size > 1 else ''}", devices[:size], left_s)])
        if not rungs[-1].passed:
            break
    return Ladder("nccl" if on_gpus(devices) else "gloo", wanted, rungs)


def singles(engine: Engine, devices: List[Optional[int]], budget_s: float) -> Union[Singles, Gap]:
    """Each GPU by itself, all at once."""
    if not on_gpus(devices):
        return Gap("not-run", "no GPU to be tested by itself")
    gpus = sorted(set(devices))
    done = trials(engine, [request(f"GPU {g} alone", [g], budget_s, ops="barrier,all_reduce,broadcast,all_gather") for g in gpus])
    return Singles({str(g): trial for g, trial in zip(gpus, done)})


def rounds(items: List[int]) -> List[List[tuple]]:
    """Every pair once, in rounds of disjoint pairs: the circle method, n - 1 rounds for an even n, n for an odd one."""
    ring: List[Optional[int]] = [*items, *([None] if len(items) % 2 else [])]
    found = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = [(a, b) for a, b in zip(ring[:half], reversed(ring[half:])) if a is not None and b is not None]
        found.append([tuple(sorted(pair)) for pair in pairs])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def pairs(engine: Engine, devices: List[Optional[int]], singles: Union[Singles, Gap], budget_s: float) -> Union[Pairs, Gap]:
    """Every pair of GPUs that pass alone, disjoint pairs at the same time, as far as the budget (seconds) goes."""
    alone = {} if isinstance(singles, Gap) else singles.trials
    gpus = sorted({d for d in devices if d is not None and (str(d) not in alone or alone[str(d)].passed)})
    if len(gpus) < 2:
        return Gap("not-run", "fewer than two GPUs that pass alone: no pair to test")
    began, found = time.monotonic(), []
    for together in rounds(gpus):
        left_s = budget_s - (time.monotonic() - began)
        if left_s <= 0:
            break
        asked = [request(f"pair {a}-{b}", [a, b], left_s, ops="all_reduce,send_recv") for a, b in together]
        found += [Pair(a, b, len(together) - 1, t) for (a, b), t in zip(together, trials(engine, asked))]
    return Pairs(len(gpus) * (len(gpus) - 1) // 2, found)


def _arms(gpu: bool) -> List[Arm]:
    """What can be switched off or narrowed here. A Gap says why an arm does not apply."""
    if not gpu:
        return [Arm("interface pinned", {"GLOO_SOCKET_IFNAME": "lo"}, [], Gap("not-run"))]
    infiniband = INFINIBAND.is_dir() and any(INFINIBAND.iterdir())
    return [
        Arm("P2P off", {"NCCL_P2P_DISABLE": "1"}, ["P2P"], Gap("not-run")),
        Arm("SHM off", {"NCCL_SHM_DISABLE": "1"}, ["SHM"], Gap("not-run")),
        Arm("P2P and SHM off", {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, ["P2P", "SHM"], Gap("not-run")),
        Arm(
            "IB off",
            {"NCCL_IB_DISABLE": "1"},
            ["NET/IB"],
            Gap("not-run") if infiniband else Gap("absent", "no InfiniBand or RoCE device here"),
        ),
        Arm("interface pinned", {"NCCL_SOCKET_IFNAME": "lo"}, [], Gap("not-run")),
    ]


def _set_already(arm: Arm) -> bool:
    return all(os.environ.get(name) == value for name, value in arm.env.items())


def arms(engine: Engine, devices: List[Optional[int]], budget_s: float) -> Union[Arms, Gap]:
    """The control, every arm that applies, the control again. Needs two ranks; the budget is in seconds."""
    if len(devices) < 2:
        return Gap("unsupported", "one GPU: a transport needs two ranks")
    began = time.monotonic()

    def run(name: str, env: Dict[str, str], repeat: bool) -> Union[Trial, Gap]:
        left_s = budget_s - (time.monotonic() - began)
        if left_s <= 0:
            return Gap("not-run", "the budget was spent")
        return trials(engine, [request(name, devices, left_s, env, ops="all_reduce,broadcast,send_recv")], repeat)[0]

    control, done = run("control", {}, True), []
    passes = isinstance(control, Trial) and control.passed  # after a control that fails, only an arm that passes says something
    for arm in _arms(on_gpus(devices)):
        if isinstance(arm.trial, Gap) and arm.trial.reason == "absent":
            done.append(arm)
        elif _set_already(arm):
            done.append(
                Arm(arm.name, arm.env, arm.acts_on, Gap("not-run", "your environment sets this already, so the control has it too"))
            )
        else:
            done.append(Arm(arm.name, arm.env, arm.acts_on, run(arm.name, arm.env, passes)))
    return Arms("nccl" if on_gpus(devices) else "gloo", control, done, run("control again", {}, passes))
