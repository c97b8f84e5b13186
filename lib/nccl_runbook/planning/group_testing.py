"""Which GPU, which pair, which split, or only the count: what to run next, and what the runs so far show. Pure; Python >= 3.9.

The model: a world fails if a faulty GPU is in it, or both ends of a faulty link, or if it has more GPUs than still work. A walk asks for
*rounds* of disjoint groups, which may run at the same time, and ends with a Diagnosis. recorded.py judges the rounds afterwards.
"""
from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import Dict, FrozenSet, Generator, Iterable, List, Optional, Sequence, Tuple

Group = Tuple[int, ...]
Round = List[Group]
Answers = Dict[Group, bool]  # group -> whether every rank passed
ENOUGH_PARTNERS = 4  # a GPU that fails with so many partners, all good among themselves, is the GPU: two bad pairs give it two at most
CONFIRM = 4  # how often the smallest group that fails is run once more at the end, and half as often the largest that pass


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """``kind``: gpus, pairs, several (both), split, count, intermittent or unclear. ``gpus``: faulty ones; ``pairs``: faulty links;
    ``sides``: the sets of a split; ``works_up_to``: GPUs, of a count-dependent fault; ``within``: the smallest group that was seen
    to fail; ``failed`` of ``repeated`` runs of it, for an intermittent fault."""

    kind: str
    gpus: Tuple[int, ...] = ()
    pairs: Tuple[Group, ...] = ()
    sides: Tuple[Group, ...] = ()
    works_up_to: int = 0
    within: Group = ()
    failed: int = 0
    repeated: int = 0


Walk = Generator[Round, Answers, Diagnosis]


class _Unsteady(Exception):
    """A group both failed and passed; ``args[0]``: that group."""


class _Seen:
    """What is known of every group, and the questions still to be asked."""

    def __init__(self, gpus: Sequence[int]) -> None:
        self.gpus: Group = tuple(gpus)
        self.known: Dict[FrozenSet[int], bool] = {}

    def told(self, group: Iterable[int]) -> Optional[bool]:
        """A group that contains one that failed fails, one inside a group that passed passes; None: not known."""
        here = frozenset(group)
        return max((passed for known, passed in self.known.items() if (here <= known if passed else known <= here)), default=None)

    def ask(self, *groups: Iterable[int]) -> Generator[Round, Answers, List[bool]]:
        """Whether each of these disjoint groups passes. What fails is repeated at once: a failure counts if it recurs in a fresh world."""
        asked = [tuple(sorted(g)) for g in groups]
        new = [g for g in asked if g and self.told(g) is None]
        passed = (yield new) if new else {}
        failed = [g for g in new if not passed[g]]
        again = (yield failed) if failed else {}
        for group in (g for g in failed if again[g]):
            raise _Unsteady(group)
        self.known.update({frozenset(g): passed[g] for g in new})
        return [not g or bool(self.told(g)) for g in asked]

    def passes(self, group: Iterable[int]) -> Generator[Round, Answers, bool]:
        return (yield from self.ask(group))[0]

    def confirm(self) -> Generator[Round, Answers, None]:
        """The smallest group that failed must go on failing, the largest that passed must go on passing: what comes and goes passes once
        by chance, and then it looks like another fault."""
        passed = [k for k, fine in self.known.items() if fine]
        most = [tuple(sorted(k)) for k in passed if len(k) > 1 and not any(k < other for other in passed)]
        for group, fine in [(self.smallest, False)] * CONFIRM + [(g, True) for g in most * (CONFIRM // 2)]:
            if (yield [group])[group] != fine:
                raise _Unsteady(group)

    @property
    def smallest(self) -> Group:
        """The smallest group that failed."""
        return tuple(sorted(min((k for k, passed in self.known.items() if not passed), key=len)))


def identify(gpus: Sequence[int], repeats: int = 20) -> Walk:
    """Ask for rounds until the fault is known, after these GPUs were seen to fail together. ``repeats``: runs that give the rate of a
    fault that comes and goes; the runs that showed it to do so were selected for that and do not count."""
    seen = _Seen(gpus)
    try:
        if (yield from seen.passes(seen.gpus)):
            raise _Unsteady(seen.gpus)
        told = yield from _identify(seen)
        yield from seen.confirm()
        return told
    except _Unsteady as unsteady:
        group, failed = tuple(unsteady.args[0]), 0
        for _ in range(repeats):
            failed += not (yield [group])[group]
        return Diagnosis("intermittent", within=group, failed=failed, repeated=repeats)


def _identify(seen: _Seen) -> Walk:
    alone = yield from seen.ask(*((g,) for g in seen.gpus))
    bad = {g for g, passed in zip(seen.gpus, alone) if not passed}
    links, rest = set(), [g for g in seen.gpus if g not in bad]
    while not (yield from seen.passes(rest)):
        link = yield from _failing_pair(seen, rest)
        if link is None:
            return Diagnosis("unclear", within=seen.smallest) if links or bad else (yield from _count(seen, rest))
        others = [g for g in rest if g not in link]
        rows = yield from _rows(seen, link, others)
        sides = () if links or bad else (yield from _split(seen, link, others, rows))
        if sides:
            return Diagnosis("split", sides=sides, within=link)
        bad |= {end for end in link if others and set(rows[end]) == set(others)}
        links |= {link, *(tuple(sorted((end, other))) for end in link for other in rows[end])}
        rest = others
    return (yield from _located(seen, tuple(sorted(bad)), tuple(sorted(p for p in links if not bad & set(p)))))


def _located(seen: _Seen, bad: Group, pairs: Tuple[Group, ...]) -> Walk:
    """The faults found must explain everything: without them all pass, and a GPU that passes alone fails with partners known to be good."""
    stars, smallest = [g for g in bad if seen.told([g])], seen.smallest
    for end in range(2 if pairs else 1):
        good = [g for g in seen.gpus if g not in bad and g not in {p[end] for p in pairs}]
        for group in [good, *([star, partner] for star in stars for partner in good[:ENOUGH_PARTNERS])]:
            if (yield from seen.passes(group)) != (group is good) or stars and len(good) < 2:
                return Diagnosis("unclear", within=smallest)
    return Diagnosis("several" if bad and pairs else "gpus" if bad else "pairs", bad, pairs, within=smallest)


def _failing_pair(seen: _Seen, group: List[int]) -> Generator[Round, Answers, Optional[Group]]:
    """Two GPUs that fail together, given that ``group`` does. Both halves pass: the link between them. None: no pair fails."""
    while len(group) > 2:
        first, second = group[: len(group) // 2], group[len(group) // 2 :]
        passed = yield from seen.ask(first, second)
        if all(passed):
            return (yield from _across(seen, first, second))
        group = first if not passed[0] else second
    return (min(group), max(group))


def _across(seen: _Seen, first: List[int], second: List[int]) -> Generator[Round, Answers, Optional[Group]]:
    while len(first) > 1 or len(second) > 1:
        first, second = sorted((first, second), key=len, reverse=True)
        for half in (first[: len(first) // 2], first[len(first) // 2 :]):
            if not (yield from seen.passes(half + second)):
                first = half
                break
        else:
            return None
    return (min(first + second), max(first + second))


def _rows(seen: _Seen, link: Group, others: List[int]) -> Generator[Round, Answers, Dict[int, List[int]]]:
    """The partners with which each end of a failing link fails. An end that passes with all others at once has none; else each partner
    is tried, both ends at the same time, until it is plain that an end fails with everything."""
    good = yield from seen.passes(others)
    clear = []
    for end in link if good else ():
        clear += [end] if (yield from seen.passes([end, *others])) else []
    met: Dict[int, List[int]] = {end: [] for end in link}
    for step in range(len(others)):
        tried = {end: others[(step + shift) % len(others)] for shift, end in enumerate(link) if end not in clear}
        together = [list(tried.items())] if len(others) > 1 else [[item] for item in tried.items()]  # two ends cannot share a partner
        for at_once in together:
            passed = yield from seen.ask(*at_once)
            for (end, other), fine in zip(at_once, passed):
                met[end] += [] if fine else [other]
        if len(clear) == 1 and any(len(row) + 1 >= ENOUGH_PARTNERS for row in met.values()):
            return {end: [] if end in clear else others for end in link}
    return met


def _split(seen: _Seen, link: Group, others: List[int], rows: Dict[int, List[int]]) -> Generator[Round, Answers, Tuple[Group, ...]]:
    """The sides, where no other GPU passes with both ends of the link, and each side holds by itself; else (). GPUs that fail with both
    ends make further sides. A side of one GPU is as good as a bad GPU, so at least two must have more."""
    (a, b), sides = link, [[end, *(g for g in others if g not in rows[end])] for end in link]
    if set(rows[a] + rows[b]) != set(others):
        return ()
    for gpu in (g for g in others if g in rows[a] and g in rows[b]):
        for side in sides[2:]:
            if (yield from seen.passes([side[0], gpu])):
                side.append(gpu)
                break
        else:
            sides.append([gpu])
    if sum(len(side) > 1 for side in sides) < 2:
        return ()
    for one, two in combinations(sides, 2):
        if (yield from seen.passes([one[-1], two[-1]])):
            return ()
    told = tuple(tuple(sorted(side)) for side in sides)
    return told if all((yield from seen.ask(*told))) else ()


def _count(seen: _Seen, rest: List[int]) -> Walk:
    """No pair fails: how many GPUs still work, which must hold for two choices of them."""
    works, fails = 2, len(rest)
    while fails - works > 1:
        middle = (works + fails) // 2
        works, fails = (middle, fails) if (yield from seen.passes(rest[:middle])) else (works, middle)
    last = rest[-fails:]
    if fails < len(rest) and (yield from seen.passes(last)) or not (yield from seen.passes(last[1:])):
        return Diagnosis("unclear", within=tuple(rest[:fails]))
    return Diagnosis("count", works_up_to=works, within=tuple(rest[:fails]))
