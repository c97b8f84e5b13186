"""What the recorded rounds of a search show, where one judges; and how sure a rate is."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from nccl_runbook.search.group_testing import REPEATS, Answers, Diagnosis, Group, Round, Walk, identify

Z95 = 1.959964


def wilson(failed: int, of: int) -> tuple[float, float]:
    """The interval in which the true rate lies with 95 % (E. B. Wilson, 1927); 0 to 1 without a run."""
    if not of:
        return 0.0, 1.0
    rate, spread = failed / of, Z95 * Z95 / of
    middle, half = (rate + spread / 2) / (1 + spread), Z95 * math.sqrt(rate * (1 - rate) / of + spread / (4 * of)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def replay(gpus: Sequence[int], rounds: Iterable[Answers], repeats: int = REPEATS) -> Diagnosis:
    """The diagnosis of rounds that were recorded; *unclear* where they end before the walk does, or answer something else, but a rate
    where that of a fault which comes and goes was being taken: of the runs that were made, where those are a quarter of all or more."""
    recorded, failed = iter(rounds := list(rounds)), [tuple(gpus)]

    def answer(question: Round) -> Answers:
        told = next(recorded, {})
        answers = {group: told[group] for group in question}
        failed.extend(group for group in question if not answers[group])
        return answers

    try:
        return _followed(identify(gpus, repeats), answer)
    except KeyError:
        fewer = replay(gpus, rounds, repeats - 1) if repeats > REPEATS // 4 else None
        return fewer if fewer and fewer.kind == "intermittent" else Diagnosis("unclear", within=min(failed, key=len))


def of_pairs(gpus: Iterable[int], failing: Sequence[Group]) -> Diagnosis:
    """The diagnosis where every pair was tried and just these failed: what a search would find if larger groups fail by their pairs."""
    return _followed(identify(sorted(gpus)), lambda question: {g: not any(set(p) <= set(g) for p in failing) for g in question})


def _followed(walk: Walk, answer: Callable[[Round], Answers]) -> Diagnosis:
    try:
        question = next(walk)
        while True:
            question = walk.send(answer(question))
    except StopIteration as end:
        return end.value
