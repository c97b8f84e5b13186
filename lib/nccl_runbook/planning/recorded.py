"""What the recorded rounds of a search show, where one judges; and how sure a rate is."""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from nccl_runbook.planning.group_testing import REPEATS, Answers, Diagnosis, Group, identify

Z95 = 1.959964


def wilson(failed: int, of: int) -> tuple[float, float]:
    """The interval in which the true rate lies with 95 % (E. B. Wilson, 1927); 0 to 1 without a run."""
    if not of:
        return 0.0, 1.0
    rate, spread = failed / of, Z95 * Z95 / of
    middle, half = (rate + spread / 2) / (1 + spread), Z95 * math.sqrt(rate * (1 - rate) / of + spread / (4 * of)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def replay(gpus: Sequence[int], rounds: Iterable[Answers], repeats: int = REPEATS) -> Diagnosis:
    """The diagnosis of rounds that were recorded; *unclear* where they end before the walk does, or answer something else."""
    walk = identify(gpus, repeats)
    failed: Group = tuple(gpus)
    try:
        question = next(walk)
        for answers in rounds:
            if any(group not in answers for group in question):
                break
            failed = min([failed, *(g for g, passed in answers.items() if not passed)], key=len)
            question = walk.send(answers)
    except StopIteration as end:
        return end.value
    return Diagnosis("unclear", within=failed)


def of_pairs(gpus: Iterable[int], failing: Sequence[Group]) -> Diagnosis:
    """The diagnosis where every pair was tried and just these failed: what a search would find if larger groups fail by their pairs."""
    walk = identify(sorted(gpus))
    try:
        question = next(walk)
        while True:
            question = walk.send({group: not any(set(pair) <= set(group) for pair in failing) for group in question})
    except StopIteration as end:
        return end.value
