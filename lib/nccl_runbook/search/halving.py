"""From a set of differences to the few that carry an effect, by halving it. Pure; Python >= 3.9,
as the node walks by it too."""

import dataclasses
from typing import Callable, Dict, FrozenSet, Generic, Optional, Sequence, Tuple, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Halved(Generic[T]):
    """``guilty``: the fewest candidates that were seen to carry the effect, in the order given; ``asked``:
    how many subsets were tried.

    ``why_not``: "" where it is settled (they alone show the effect and all the others together do not), else
    why it is not: "budget spent", "confounded" (what was seen contradicts itself) or "unclear" (an answer was
    None).
    """

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
    """Which of ``candidates``, no two of them equal, carry the effect. ``shows(subset)``: whether it shows
    with that subset alone (never asked twice for one); None if that cannot be said. The caller has seen that
    it shows with all of them and not with none; ``most``: answers at most.
    """
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
