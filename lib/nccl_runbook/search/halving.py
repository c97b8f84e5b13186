"""From a set of differences to the few that carry an effect, by halving it. Pure; Python >= 3.9, as the node walks by it too."""
from __future__ import annotations

import dataclasses
from typing import Callable, Generic, List, Optional, Sequence, Tuple, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Halved(Generic[T]):
    """``guilty``: the fewest candidates that were seen to carry the effect, in the order given; ``asked``: how many subsets were tried.

    ``why_not``: "" where it is settled (they alone show the effect and all the others together do not), else why it is not:
    "budget spent", "confounded" (what was seen contradicts itself) or "unclear" (an answer was None).
    """

    guilty: Tuple[T, ...]
    asked: int
    why_not: str = ""


def _guilty(suspects: List[int], beside: List[int], shows: Callable[[List[int]], bool]) -> List[int]:
    """The part of ``suspects`` without which the effect is gone, given that it shows with ``suspects`` and ``beside`` together.

    Where neither half does it alone, each half is searched with the other present (A. Zeller, "Yesterday, my program worked", 1999):
    one factor costs at most 2 log2(n) answers, a pair about twice that.
    """
    if len(suspects) == 1:
        return suspects
    middle = (len(suspects) + 1) // 2
    first, second = suspects[:middle], suspects[middle:]
    for half in (first, second):
        if shows(half + beside):
            return _guilty(half, beside, shows)
    return _guilty(first, beside + second, shows) + _guilty(second, beside + first, shows)


def halve(candidates: Sequence[T], shows: Callable[[Tuple[T, ...]], Optional[bool]], most: int = 40) -> Halved[T]:
    """Which of ``candidates`` carry the effect. ``shows(subset)``: whether it shows with that subset alone (never asked twice for one);
    None where that cannot be said. The caller has seen that it shows with all of them and not with none; ``most``: answers at most.
    """
    order, known = list(candidates), {frozenset(range(len(candidates))): True, frozenset(): False}
    asked, best = 0, list(range(len(order)))

    def answer(subset: List[int]) -> bool:
        nonlocal asked, best
        key = frozenset(subset)
        if key not in known:
            if asked >= most:
                raise _Ended("budget spent")
            asked += 1
            if (shown := shows(tuple(order[i] for i in sorted(subset)))) is None:
                raise _Ended("unclear")
            known[key] = shown
        if known[key] and len(key) < len(best):
            best = sorted(key)
        return known[key]

    try:
        guilty, why_not = sorted(_guilty(best, [], answer)), ""
        if not answer(guilty) or answer([i for i in range(len(order)) if i not in guilty]):
            guilty, why_not = best, "confounded"
    except _Ended as end:
        guilty, why_not = best, str(end)
    return Halved(tuple(order[i] for i in guilty), asked, why_not)


class _Ended(Exception):
    """The walk cannot go on; the message is why."""
