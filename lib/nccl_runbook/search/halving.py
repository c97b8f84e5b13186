"""From a set of differences to the few that carry an effect, by halving it. Pure; Python >= 3.9,
as the node walks by it too."""

import dataclasses
from typing import Callable, Dict, FrozenSet, Generic, Optional, Sequence, Tuple, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Halved(Generic[T]):
    """``guilty``: the smallest set of candidates seen to cause the effect, in the given order; ``asked``:
    number of subsets tried; ``why_not``: empty if it is proven (they alone show the effect and the others
    together do not), else "budget spent", "confounded" (answers contradict each other) or "unclear" (an
    answer was None)."""

    guilty: Tuple[T, ...]
    asked: int
    why_not: str = ""


def _guilty(suspects: Sequence[T], beside: Sequence[T], shows: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """The part of ``suspects`` without which the effect is gone, given that it shows with ``suspects`` and
    ``beside`` together.

    If neither half does it alone, each half is searched with the other present (A. Zeller, "Yesterday, my
    program worked", 1999): one factor costs at most 2 log2(n) answers, a pair about twice that.
    """
    if len(suspects) == 1:
        return suspects
    middle = (len(suspects) + 1) // 2
    first, second = suspects[:middle], suspects[middle:]
    for half in (first, second):
        if shows([*half, *beside]):
            return _guilty(half, beside, shows)
    return [*_guilty(first, [*beside, *second], shows), *_guilty(second, [*beside, *first], shows)]


def halve(
    candidates: Sequence[T], shows: Callable[[Tuple[T, ...]], Optional[bool]], most: int = 40
) -> Halved[T]:
    """Which of these distinct ``candidates`` cause the effect. ``shows(subset)``: whether that subset alone
    shows the effect (asked once a subset), None if unknown. The caller has seen the effect with all
    candidates and not with none. ``most``: largest number of questions. Never raises; ``why_not`` says why
    it stopped early."""
    given = [frozenset(candidates), frozenset()]
    known: Dict[FrozenSet[T], Optional[bool]] = dict(zip(given, (True, False)))

    def answer(subset: Sequence[T]) -> bool:
        key = frozenset(subset)
        if key not in known:
            if len(known) - len(given) >= most:
                raise _Ended("budget spent")
            known[key] = shows(tuple(c for c in candidates if c in key))
        if known[key] is None:
            raise _Ended("unclear")
        return bool(known[key])

    try:
        guilty, why_not = frozenset(_guilty(candidates, [], answer)), ""
        if not answer([*guilty]) or answer([*(given[0] - guilty)]):
            why_not = "confounded"
    except _Ended as end:
        why_not = str(end)
    if why_not:
        guilty = min((subset for subset, shown in known.items() if shown), key=len)
    return Halved(tuple(c for c in candidates if c in guilty), len(known) - len(given), why_not)


class _Ended(Exception):
    """The walk cannot go on; the message is why."""
