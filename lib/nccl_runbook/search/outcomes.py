"""Runs of groups of GPUs, and their outcomes, each asked for once."""

import dataclasses
from typing import Callable, Dict, FrozenSet, Iterable, List, Optional, Tuple

Group = Tuple[int, ...]
Round = List[Group]
Answers = Dict[Group, bool]  # group -> whether every rank passed
Asked = Callable[[Round], Answers]  # runs the worlds of a round
# a GPU that fails with this many partners, all good among themselves, is at fault: two bad
# pairs give it two at most
ENOUGH_PARTNERS = 4
REPEATS = 20  # runs that estimate the rate of an intermittent fault
# GPUs: up to here every pair is tried (worlds/ask.py); with more, the search asks for the pairs that it needs
MATRIX_MOST = 8
# how often the smallest group that fails is run once more at the end, and half as often the largest that pass
CONFIRM = 4


class Unsteady(Exception):
    """A group both failed and passed; ``args[0]``: the group."""


class Spent(Exception):
    """The search needs more worlds than `most_runs` allows."""


def most_runs(gpus: int) -> int:
    """Largest number of worlds for a search over so many GPUs. The search ends *unclear* if they do not
    suffice, as with 9 bad GPUs of 16."""
    return 5 * gpus + 12 * (gpus - 1).bit_length() + 8 * CONFIRM + REPEATS


@dataclasses.dataclass(eq=False)
class Outcomes:
    """What is known of every group of GPUs; asks for the rest."""

    gpus: Group
    answer: Asked
    known: Dict[FrozenSet[int], bool] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = most_runs(len(self.gpus)) - REPEATS
        # where every pair is known, every partner counts
        self.enough = ENOUGH_PARTNERS if len(self.gpus) > MATRIX_MOST else len(self.gpus)

    def known_to_pass(self, group: Iterable[int]) -> Optional[bool]:
        """Whether a group is known to pass (inside a passing group) or fail (contains a failing one); None
        if unknown."""
        here = frozenset(group)
        return max(
            (passed for known, passed in self.known.items() if (here <= known if passed else known <= here)),
            default=None,
        )

    def run(self, groups: Round) -> Answers:
        """Group -> whether it passed, from one round of worlds. Spent if the budget of worlds is exceeded."""
        self.left -= len(groups)
        if self.left < 0:
            raise Spent
        return self.answer(groups) if groups else {}

    def ask(self, *groups: Iterable[int]) -> List[bool]:
        """Whether each of these disjoint groups passes. A single GPU that fails is repeated at once, larger
        groups when named. Spent and Unsteady as in run and recurs."""
        asked = [tuple(sorted(g)) for g in groups]
        new = [g for g in asked if g and self.known_to_pass(g) is None]
        passed = self.run(new)
        self.recurs([g for g in new if len(g) == 1 and not passed[g]])
        self.known.update({frozenset(g): passed[g] for g in new})
        return [not g or bool(self.known_to_pass(g)) for g in asked]

    def recurs(self, groups: Round, fine: bool = False) -> None:
        """Repeat these groups; Unsteady if one ends differently."""
        again = self.run(groups)
        for group in (g for g in groups if again[g] != fine):
            raise Unsteady(group)

    def passes(self, group: Iterable[int]) -> bool:
        """Whether this group passes; raises as ask."""
        return self.ask(group)[0]

    def confirm(self) -> None:
        """Repeat the smallest failing and the largest passing groups, since an intermittent fault that
        passes once looks like another fault. Unsteady if one changes."""
        passed = [k for k, fine in self.known.items() if fine]
        most = [tuple(sorted(k)) for k in passed if len(k) > 1 and not any(k < other for other in passed)]
        for group, fine in [(self.smallest, False)] * CONFIRM + [
            (g, True) for g in sorted(most, key=len)[-CONFIRM:] * (CONFIRM // 2)
        ]:
            self.recurs([group], fine)

    @property
    def smallest(self) -> Group:
        """The smallest group that failed; ValueError if none did."""
        return tuple(sorted(min((k for k, passed in self.known.items() if not passed), key=len)))
