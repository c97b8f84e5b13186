"""Which GPU, which pair, which split, or only the count: what to run next, and what the runs so far
show. Pure; Python >= 3.9.

The model: a world fails if a faulty GPU is in it, or both ends of a faulty link, or if it has more GPUs
than still work. A search asks for *rounds* of disjoint groups, which may run at the same time, and ends with
a Diagnosis. ``replay`` judges recorded rounds.
"""

import dataclasses
import math
from itertools import combinations
from typing import Iterable, List, Sequence, Tuple

from nccl_runbook.search.outcomes import (
    MATRIX_MOST,
    REPEATS,
    Answers,
    Asked,
    Group,
    Outcomes,
    Round,
    Spent,
    Unsteady,
)

Z95 = 1.959964


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """``kind``: gpus, pairs, several (both), split, count, intermittent or unclear. ``gpus``: faulty ones;
    ``pairs``: faulty links; ``sides``: the sets of a split; ``works_up_to``: number of GPUs that still work
    (1: no two do); ``within``: the smallest group that failed; ``failed`` of ``repeated`` runs of that group
    failed."""

    kind: str
    gpus: Tuple[int, ...] = ()
    pairs: Tuple[Group, ...] = ()
    sides: Tuple[Group, ...] = ()
    works_up_to: int = 0
    within: Group = ()
    failed: int = 0
    repeated: int = 0


def identify(gpus: Sequence[int], answer: Asked, repeats: int = REPEATS) -> Diagnosis:
    """Ask for rounds until the fault is known, given that these GPUs failed together. Never raises for what
    it sees: *intermittent* or *unclear* if the answers do not agree. ``repeats``: runs that estimate the
    rate of an intermittent fault; the runs that revealed it are biased and do not count."""
    outcomes = Outcomes(tuple(gpus), answer)
    try:
        if outcomes.passes(outcomes.gpus):
            raise Unsteady(outcomes.gpus)
        outcomes.recurs([outcomes.gpus])
        diagnosis = _identify(outcomes)
        if diagnosis.works_up_to != 1:  # of pairs that all fail each is the recurrence of the others
            outcomes.confirm()
        return diagnosis
    except Spent:
        return Diagnosis("unclear", within=outcomes.smallest)
    except Unsteady as unsteady:
        group = tuple(unsteady.args[0])
        return Diagnosis(
            "intermittent",
            within=group,
            repeated=repeats,
            failed=sum(not answer([group])[group] for _ in range(repeats)),
        )


def _identify(outcomes: Outcomes) -> Diagnosis:
    alone = dict(zip(outcomes.gpus, outcomes.ask(*((g,) for g in outcomes.gpus))))
    bad, rest = [[g for g in outcomes.gpus if alone[g] is fine] for fine in (False, True)]
    if _no_two(outcomes, rest):
        return Diagnosis("unclear" if bad else "count", works_up_to=0 if bad else 1, within=outcomes.smallest)
    sides = _sides(outcomes, rest)
    if not sides and not bad:
        return _count(outcomes, rest)
    if not bad and _is_split(outcomes, sides):
        return Diagnosis(
            "split", sides=tuple(sorted(tuple(sorted(side)) for side in sides)), within=outcomes.smallest
        )
    is_unclear = not sides or (len(sides) > 2 and len(sides[0]) < 2)
    return Diagnosis("unclear", within=outcomes.smallest) if is_unclear else _located(outcomes, bad, sides)


def _no_two(outcomes: Outcomes, rest: List[int]) -> bool:
    """Whether no two of three or more GPUs work together. Up to MATRIX_MOST every pair is tried; of more,
    until one passes, every pair of up to ten, else those within two sixes: no 9 bad GPUs, and no split into 5
    sets, make them all fail."""
    teams, passed = [rest] if len(rest) <= 10 else [rest[:6], rest[6:12]], False
    for turn in range(len(teams[0])):
        if not passed or len(rest) <= MATRIX_MOST:
            pairs = [
                (a, b)
                for t in teams
                for (i, a), (j, b) in combinations(enumerate(t), 2)
                if (i + j) % len(t) == turn
            ]
            passed = any(outcomes.ask(*pairs)) or passed
    return len(rest) > 2 and not passed


def _sides(outcomes: Outcomes, rest: List[int]) -> List[List[int]]:
    """Sets of GPUs that pass together, the largest first; a failing pair has its ends on different sides.
    Empty if no pair fails."""
    sides: List[List[int]] = [[]]
    waiting = [rest]
    while waiting:
        chunk = waiting.pop()
        if not any(len(side) > 1 for side in sides[1:2]) and outcomes.passes([*sides[0], *chunk]):
            sides[0] += chunk
        elif len(chunk) > 1:
            waiting += [chunk[len(chunk) // 2 :], chunk[: len(chunk) // 2]]
        elif not _side_of(outcomes, chunk[0], sides):
            return []
        sides.sort(key=len, reverse=True)
    return sides


def _side_of(outcomes: Outcomes, gpu: int, sides: List[List[int]]) -> bool:
    """Add the GPU to the side where it passes, or to a new one; False if it fails with the largest one, and
    with no GPU there alone."""
    for side in sides:
        if outcomes.passes([*side, gpu]):
            side.append(gpu)
            return True
    sides.append([gpu])
    return bool(_partners(outcomes, gpu, sides[0]))


def _partners(outcomes: Outcomes, gpu: int, group: List[int]) -> List[int]:
    """Members of a passing group with which this GPU fails; stops once there are enough."""
    if not group or outcomes.passes([gpu, *group]):
        return []
    if len(group) == 1:
        return group
    first = _partners(outcomes, gpu, group[: len(group) // 2])
    return (
        first
        if len(first) >= outcomes.enough
        else [*first, *_partners(outcomes, gpu, group[len(group) // 2 :])]
    )


def _is_split(outcomes: Outcomes, sides: List[List[int]]) -> bool:
    """Whether nothing passes across, of what is tried: every GPU of the smaller side with as many of the
    larger as make eight pairs. A side of one GPU is as good as a bad GPU, so at least two must have more."""
    if sum(len(side) > 1 for side in sides) < 2:
        return False
    for large, small in combinations(sides, 2):
        # at least two turns for two sides: in one, links from each GPU to its mate alone would
        # look like a split
        for shift in range(min(len(large), max(4 - len(sides), -(-8 // len(small))))):
            across = [(g, large[(at + shift) % len(large)]) for at, g in enumerate(small)]
            passed = [tuple(sorted(pair)) for pair, fine in zip(across, outcomes.ask(*across)) if fine]
            if passed:
                outcomes.recurs(passed, True)
                return False
    return True


def _located(outcomes: Outcomes, bad: List[int], sides: List[List[int]]) -> Diagnosis:
    """Across the sides: a GPU that fails with enough of the largest is bad, else each failing pair is a
    link."""
    links, stars = [], []
    for gpu, own, larger in (
        (g, side, sides[:at]) for at, side in enumerate(sides) for g in (side if at else ())
    ):
        for side in larger:
            row = _partners(outcomes, gpu, [g for g in side if g not in stars])
            every = len(row) >= max(2, len(side)) and not any(
                outcomes.known_to_pass([gpu, g]) for g in outcomes.gpus if g != gpu
            )
            if own == [gpu] and side is sides[0] and (every or len(row) >= outcomes.enough):
                stars.append(gpu)
                break
            links += [(min(gpu, g), max(gpu, g)) for g in row]
    faulty, pairs = (
        tuple(sorted([*bad, *stars])),
        tuple(sorted({p for p in links if not set(stars) & set(p)})),
    )
    for pair in pairs:
        outcomes.recurs([pair])
    for gone in ({p[0] for p in pairs}, {p[1] for p in pairs}):  # the faults found must explain everything
        good = [g for g in outcomes.gpus if g not in faulty and g not in gone]
        if (stars and len(good) < 2) or not outcomes.passes(good):
            return Diagnosis("unclear", within=outcomes.smallest)
    return Diagnosis(
        "several" if faulty and pairs else "gpus" if faulty else "pairs",
        faulty,
        pairs,
        within=outcomes.smallest,
    )


def _count(outcomes: Outcomes, rest: List[int]) -> Diagnosis:
    """No pair fails: how many GPUs still work, which must hold for two choices of them."""
    works, fails = 2, len(rest)
    while fails - works > 1:
        middle = (works + fails) // 2
        works, fails = (middle, fails) if outcomes.passes(rest[:middle]) else (works, middle)
    last = rest[-fails:]
    if (fails < len(rest) and outcomes.passes(last)) or not outcomes.passes(last[1:]):
        return Diagnosis("unclear", within=tuple(rest[:fails]))
    return Diagnosis("count", works_up_to=works, within=tuple(rest[:fails]))


# --- recorded rounds, and how sure a rate is


def wilson(failed: int, runs: int) -> Tuple[float, float]:
    """Interval of the true rate with 95 % confidence (E. B. Wilson, 1927); 0 to 1 without a run."""
    if not runs:
        return 0.0, 1.0
    rate, spread = failed / runs, Z95 * Z95 / runs
    middle = (rate + spread / 2) / (1 + spread)
    half = Z95 * math.sqrt(rate * (1 - rate) / runs + spread / (4 * runs)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def replay(gpus: Sequence[int], rounds: Iterable[Answers], repeats: int = REPEATS) -> Diagnosis:
    """The diagnosis of recorded rounds; *unclear* if they end before the search does or contradict it. For
    an intermittent fault the rate counts the runs that were made, if those are at least a quarter."""
    recorded, failed = iter(rounds := list(rounds)), [tuple(gpus)]

    def answer(question: Round) -> Answers:
        passed = next(recorded, {})
        answers = {group: passed[group] for group in question}
        failed.extend(group for group in question if not answers[group])
        return answers

    try:
        return identify(gpus, answer, repeats)
    except KeyError:
        fewer = replay(gpus, rounds, repeats - 1) if repeats > REPEATS // 4 else None
        return (
            fewer
            if fewer and fewer.kind == "intermittent"
            else Diagnosis("unclear", within=min(failed, key=len))
        )


def of_pairs(gpus: Iterable[int], failing: Sequence[Group]) -> Diagnosis:
    """The diagnosis if all pairs were tried and exactly these failed: what a search finds if larger groups
    fail by their pairs."""
    return identify(
        sorted(gpus), lambda question: {g: not any(set(p) <= set(g) for p in failing) for g in question}
    )
