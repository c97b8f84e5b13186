"""Worlds of checked collectives: 1, 2, ... N ranks, each GPU alone, and each pair."""

import dataclasses
import functools
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from nccl_runbook.core.facts import Gap, counted
from nccl_runbook.core.facts_world import WorldRequest
from nccl_runbook.launch.engine import LOGGED, Engine
from nccl_runbook.search.outcomes import MATRIX_MOST, Group
from nccl_runbook.worlds.facts import NOT_RUN, Ladder, Pair, Pairs, Search, SearchRound, Singles, Trial

MIB = 1 << 20
GPU_SIZES, CPU_SIZES = (4, 16 * MIB, 256 * MIB), (4, MIB)
# a world of four ranks over sockets took 9.7 s on H200 (NCCL 2.28.9); the very first one may load its
# libraries from a cold disk
GPU_DEADLINE_S, CPU_DEADLINE_S, FIRST_DEADLINE_S = 30.0, 20.0, 60.0
# A rank of a healthy world gives a sign of life at least every 1.5 s there; without any a world hangs. Once
# one hung, less will do.
STALL_FIRST_S, STALL_S = 12.0, 5.0
SPENT = "too little time was left for this test. Raise budget_s"


def on_gpus(devices: List[Optional[int]]) -> bool:
    """Whether these ranks run on GPUs (one rank decides for all)."""
    return devices[0] is not None


def budget(seconds: float, gpu: bool, deadline_s: float = 0.0) -> Callable[[], bool]:
    """A function that returns True once ``seconds`` no longer suffice for the whole deadline of a world: a
    slow world that is cut short would look hung."""
    last = time.monotonic() + seconds - (deadline_s or (GPU_DEADLINE_S if gpu else CPU_DEADLINE_S))
    return lambda: time.monotonic() > last


def request(
    name: str,
    devices: List[Optional[int]],
    env: Optional[Dict[str, Optional[str]]] = None,
    ops: str = "barrier,all_reduce,broadcast,all_gather,send_recv",
    deadline_s: float = 0.0,
    timed: bool = True,
    stall_s: float = STALL_FIRST_S,
    sizes: Tuple[int, ...] = (),
) -> WorldRequest:
    """A world of checked collectives. ``deadline_s`` 0 and no ``sizes``: the defaults for GPUs or for the
    CPU."""
    gpu = on_gpus(devices)
    args = [
        "--ops",
        ops,
        "--sizes",
        ",".join(map(str, sizes or (GPU_SIZES if gpu else CPU_SIZES))),
        "--repeats",
        "3" if timed else "0",
        "--backend",
        "nccl" if gpu else "gloo",
    ]
    return WorldRequest(
        name,
        "check.py",
        devices,
        args,
        {**(LOGGED if gpu else {}), **(env or {})},
        deadline_s or (GPU_DEADLINE_S if gpu else CPU_DEADLINE_S),
        stall_s=stall_s * max(1.0, len(devices) / 8) if gpu else None,
        timed=timed,
    )


def trials(
    engine: Engine, requests: List[WorldRequest], repeat: bool = True, lone: bool = False
) -> List[Trial]:
    """Run these worlds at the same time. With ``repeat``, those that failed then run once more in fresh
    processes. With ``lone`` they do so only if another world passed: if all fail at the same time, each
    failure confirms the others."""
    worlds = engine.run_all(requests)
    repeat = repeat and not (lone and not any(w.passed for w in worlds))
    failed = [
        dataclasses.replace(r, stall_s=r.stall_s and max(STALL_S, r.stall_s * STALL_S / STALL_FIRST_S))
        for r, w in zip(requests, worlds)
        if repeat and not w.passed
    ]
    again = dict(zip([r.name for r in failed], engine.run_all(failed)))
    return [Trial(r.name, w, again.get(r.name)) for r, w in zip(requests, worlds)]


def world_sizes(most: int) -> List[int]:
    """The numbers of ranks to try: 1, 2, ... N up to eight, then powers of two and N."""
    return (
        list(range(1, most + 1))
        if most <= 8
        else sorted({*range(1, 9), *(1 << k for k in range(4, most.bit_length())), most})
    )


def ladder(engine: Engine, devices: List[Optional[int]], budget_s: float) -> Ladder:
    """Worlds of growing size until one fails or the budget (seconds) is spent. The last seconds go to the
    world of all ranks: a hang shows after STALL_FIRST_S, and the engine does not call a world hung that the
    budget cut short."""
    gpu, rungs = on_gpus(devices), []
    spent, nearly_spent = budget(budget_s, gpu, STALL_FIRST_S), budget(budget_s, gpu)
    wanted = left = world_sizes(len(devices))
    while left and all(rung.passed for rung in rungs):
        if rungs and nearly_spent():
            left = left[-1:]
        if rungs and spent():
            break
        asked = request(
            counted(left[0], "rank"), devices[: left[0]], deadline_s=0.0 if rungs else FIRST_DEADLINE_S
        )
        rungs += trials(engine, [asked])
        left = left[1:]
    return Ladder("nccl" if gpu else "gloo", wanted, rungs)


def singles(engine: Engine, devices: List[Optional[int]], budget_s: float) -> Union[Singles, Gap]:
    """Each GPU alone, all at the same time; a Gap if the budget (seconds) does not suffice."""
    if not on_gpus(devices) or budget(budget_s, True)():
        return Gap("not-run", SPENT if on_gpus(devices) else "no GPU to test alone")
    gpus = sorted(set(devices))
    alone = [request(f"GPU {g} alone", [g], ops="barrier,all_reduce,broadcast,all_gather") for g in gpus]
    return Singles(dict(zip(map(str, gpus), trials(engine, alone))))


def rounds(items: List[int]) -> List[List[tuple]]:
    """Every pair once, in rounds of disjoint pairs, neighbours first: the circle method, with n - 1 rounds
    for an even n, n for an odd one."""
    even: List[Optional[int]] = [*items, *[None] * (len(items) % 2)]  # None: its partner pauses
    # the first item stays, and the others move on by one place in each turn; then opposite places are pairs
    ring, half = [*even[::2], *reversed(even[1::2])], len(even) // 2
    turns = [[ring[0], *ring[len(ring) - n :], *ring[1 : len(ring) - n]] for n in range(len(ring) - 1)]
    return [
        [tuple(sorted(pair)) for pair in zip(turn[:half], reversed(turn[half:])) if None not in pair]
        for turn in turns
    ]


def pairs(
    engine: Engine,
    devices: List[Optional[int]],
    singles: Union[Singles, Gap],
    budget_s: float,
    ladder: Union[Ladder, Gap] = NOT_RUN,
) -> Union[Pairs, Gap]:
    """Every pair of GPUs that pass alone, disjoint pairs at the same time, until the budget (seconds) is
    spent. A Gap if no pair can be tried."""
    alone = {} if isinstance(singles, Gap) else singles.trials
    gpus = sorted({d for d in devices if d is not None and (str(d) not in alone or alone[str(d)].passed)})
    if len(gpus) < 2:
        return Gap("not-run", "fewer than two GPUs pass alone, so there is no pair to test")
    failing = None if isinstance(ladder, Gap) else ladder.first_failing
    if failing and len(gpus) > MATRIX_MOST:
        return Gap(
            "not-run",
            f"there are more than {MATRIX_MOST} GPUs, so the search below tests only the pairs that it needs",
        )
    if failing and failing.failed_twice and len(gpus) == 2 and gpus == sorted(failing.world.request.devices):
        return Pairs(1, [Pair(gpus[0], gpus[1], 0, failing)])  # the only pair is what failed
    return every_pair(
        engine,
        gpus,
        budget(budget_s, True),
        functools.partial(request, ops="all_reduce,send_recv", stall_s=STALL_S if failing else STALL_FIRST_S),
        # where the ladder failed the search repeats what decides, of three GPUs or more
        repeat=not failing or len(gpus) < 3,
    )


def every_pair(
    engine: Engine,
    gpus: List[int],
    spent: Callable[[], bool],
    make: Callable[[str, List[Optional[int]]], WorldRequest],
    repeat: bool = True,
    lone: bool = False,
) -> Pairs:
    """Trials of all pairs. ``make``: builds the world of a name on these GPUs; ``repeat``: run failures once
    more; ``lone``: stop once all pairs of one round fail."""
    done: List[Pair] = []
    for together in rounds(gpus):
        if spent() or (lone and done and not any(p.trial.passed for p in done)):
            break
        ended = trials(engine, [make(f"pair {a}-{b}", [a, b]) for a, b in together], repeat, lone)
        done += [Pair(a, b, len(together) - 1, t) for (a, b), t in zip(together, ended)]
    return Pairs(len(gpus) * (len(gpus) - 1) // 2, done)


def search(
    engine: Engine,
    ladder: Union[Ladder, Gap],
    singles: Union[Singles, Gap],
    pairs: Union[Pairs, Gap],
    budget_s: float,
    identify: Callable[..., Any],
) -> Union[Search, Gap]:
    """Rounds that locate the GPU or link if the ladder failed, else a Gap. ``identify``:
    search.group_testing.identify, which chooses the rounds."""
    failing = None if isinstance(ladder, Gap) else ladder.first_failing
    if failing is None or isinstance(singles, Gap):
        return Gap("not-run", "no run with several GPUs failed")
    gpus = (
        sorted(int(g) for g in singles.trials)
        if failing.failed_twice
        else sorted(d for d in failing.world.request.devices if d is not None)
    )
    matrix = [] if isinstance(pairs, Gap) else pairs.pairs
    if len(set(failing.world.request.devices)) < failing.world.request.world_size or (
        len(gpus) < 3 and failing.failed_twice
    ):
        return Gap("not-run", "two GPUs make only one pair, which the test of all GPUs has tested")
    if not any(t.passed for t in singles.trials.values()) or (
        len(gpus) > 2 and matrix and not any(p.trial.passed for p in matrix)
    ):
        return Gap("not-run", "every GPU or every pair fails, so no single GPU or pair is at fault")
    # a world that failed and passed did so, whatever the same two did as a pair
    known = {
        **{tuple(sorted(t.world.request.devices)): t for t in [*ladder.rungs, *singles.trials.values()]},
        **{(p.first, p.second): p.trial for p in matrix},
        **({} if failing.failed_twice else {tuple(gpus): failing}),
    }
    return _rounds(engine, known, gpus, budget(budget_s, True), identify)


class _Ended(Exception):
    """The budget is spent before the fault is known."""


def _rounds(
    engine: Engine,
    tried: Mapping[Group, Trial],
    gpus: List[int],
    spent: Callable[[], bool],
    identify: Callable[..., Any],
) -> Search:
    """The search, with the groups of each round at the same time. A group that was ``tried`` before (by
    ladder, singles or pairs) first answers with those outcomes, each once; then it runs in fresh
    processes."""
    known = {g: [w for w in (t.world, t.again) if w is not None] for g, t in tried.items()}
    done, failed, why = [], [], ""

    def answer(groups: List[Group]) -> Dict[Group, bool]:
        if spent():
            raise _Ended
        requests = {
            g: request(
                f"GPUs {', '.join(map(str, g))}",
                list(g),
                ops="all_reduce,send_recv",
                timed=False,
                stall_s=STALL_S,
            )
            for g in groups
            if not known.get(g)
        }
        worlds = dict(zip(requests, engine.run_all([*requests.values()])))
        worlds.update({g: known[g].pop(0) for g in groups if g not in requests})
        failed.extend(w for w in worlds.values() if not w.passed)
        done.append(SearchRound([list(g) for g in groups], [worlds[g].passed for g in groups]))
        return {g: w.passed for g, w in worlds.items()}

    try:
        identify(gpus, answer)
    except _Ended:
        why = SPENT
    return Search(gpus, done, min(failed, key=lambda w: w.request.world_size, default=NOT_RUN), why)
