"""Worlds of checked collectives: 1, 2, ... N ranks, each GPU alone, and each pair."""

from __future__ import annotations

import time
from typing import Dict, List, Optional, Union

from nccl_runbook.facts import Gap
from nccl_runbook.facts.experiments import Ladder, Pair, Pairs, Singles, Trial
from nccl_runbook.facts.world import WorldRequest
from nccl_runbook.launch.engine import Engine

# NCCL's log goes to the rank's own output at INFO: without it nothing proves that a toggle acted. The user's file and subsystem filter
# would hide it, so they are left out.
LOGGED: Dict[str, Optional[str]] = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": None, "NCCL_DEBUG_SUBSYS": None}
MIB = 1 << 20
GPU_SIZES, CPU_SIZES = (4, 16 * MIB, 256 * MIB), (4, MIB)
# a world of four ranks over sockets took 9.7 s on H200 (NCCL 2.28.9); the very first one may load its libraries from a cold disk
GPU_DEADLINE_S, CPU_DEADLINE_S, FIRST_DEADLINE_S = 30.0, 20.0, 60.0
SPENT = "the budget was spent: raise budget_s"


def on_gpus(devices: List[Optional[int]]) -> bool:
    return devices[0] is not None


class Budget:
    """Seconds that a probe may take. A world starts only if its whole deadline fits: cut short, a slow one would look hung."""

    def __init__(self, seconds: float, gpu: bool) -> None:
        self.until, self.deadline_s = time.monotonic() + seconds, GPU_DEADLINE_S if gpu else CPU_DEADLINE_S

    @property
    def spent(self) -> bool:
        return self.until - time.monotonic() < self.deadline_s


def request(name: str, devices: List[Optional[int]], env: Optional[Dict[str, Optional[str]]] = None,
            ops: str = "barrier,all_reduce,broadcast,all_gather,send_recv", first: bool = False) -> WorldRequest:
    """One world of checked collectives."""
    gpu = on_gpus(devices)
    sizes = ",".join(map(str, GPU_SIZES if gpu else CPU_SIZES))
    args = ["--ops", ops, "--sizes", sizes, "--repeats", "3", "--backend", "nccl" if gpu else "gloo"]
    deadline_s = FIRST_DEADLINE_S if first else GPU_DEADLINE_S if gpu else CPU_DEADLINE_S
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
    budget, rungs = Budget(budget_s, on_gpus(devices)), []
    wanted = world_sizes(len(devices))
    for size in wanted:
        if rungs and budget.spent:
            break
        rungs += trials(engine, [request(f"{size} rank{'s' if size > 1 else ''}", devices[:size], first=not rungs)])
        if not rungs[-1].passed:
            break
    return Ladder("nccl" if on_gpus(devices) else "gloo", wanted, rungs)


def singles(engine: Engine, devices: List[Optional[int]], budget_s: float) -> Union[Singles, Gap]:
    """Each GPU by itself, all at once."""
    if not on_gpus(devices):
        return Gap("not-run", "no GPU to be tested by itself")
    if Budget(budget_s, True).spent:
        return Gap("not-run", SPENT)
    gpus = sorted(set(devices))
    done = trials(engine, [request(f"GPU {g} alone", [g], ops="barrier,all_reduce,broadcast,all_gather") for g in gpus])
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
    budget, found = Budget(budget_s, True), []
    for together in rounds(gpus):
        if budget.spent:
            break
        asked = [request(f"pair {a}-{b}", [a, b], ops="all_reduce,send_recv") for a, b in together]
        found += [Pair(a, b, len(together) - 1, t) for (a, b), t in zip(together, trials(engine, asked))]
    return Pairs(len(gpus) * (len(gpus) - 1) // 2, found)
