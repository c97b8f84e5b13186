"""Runs of groups of GPUs, and their outcomes, each asked for once."""

from typing import Callable, Dict, FrozenSet, Iterable, List, Optional, Sequence, Tuple

Group = Tuple[int, ...]
Round = List[Group]
Answers = Dict[Group, bool]  # group -> whether every rank passed
Asked = Callable[[Round], Answers]  # runs the worlds of a round
# a GPU that fails with so many partners, all good among themselves, is the GPU: two bad
# pairs give it two at most
ENOUGH_PARTNERS = 4
REPEATS = 20  # runs that give the rate of a fault that comes and goes
MATRIX_MOST = 8  # GPUs: up to here every pair is tried, as was done before the search (worlds/ask.py)
# how often the smallest group that fails is run once more at the end, and half as often the largest that pass
CONFIRM = 4


class Unsteady(Exception):
    """A group both failed and passed; ``args[0]``: that group."""


class Spent(Exception):
    """`most_runs` would not do."""


def most_runs(gpus: int) -> int:
    """The most worlds that a search over so many GPUs asks for; it ends *unclear* where they do not tell, as
    with 9 bad GPUs of 16."""
    return 5 * gpus + 12 * (gpus - 1).bit_length() + 8 * CONFIRM + REPEATS


class Outcomes:
    """What is known of every group, and the questions still to be asked."""

    def __init__(self, gpus: Sequence[int], answer: Asked) -> None:
        self.gpus: Group = tuple(gpus)
        self.answer = answer
        self.left = most_runs(len(gpus)) - REPEATS
        self.known: Dict[FrozenSet[int], bool] = {}
        # where every pair is known, every partner counts
        self.enough = ENOUGH_PARTNERS if len(gpus) > MATRIX_MOST else len(gpus)

    def known_to_pass(self, group: Iterable[int]) -> Optional[bool]:
        """A group that contains one that failed fails, one inside a group that passed passes; None: not
        known."""
        here = frozenset(group)
        return max(
            (passed for known, passed in self.known.items() if (here <= known if passed else known <= here)),
            default=None,
        )

    def run(self, groups: Round) -> Answers:
        self.left -= len(groups)
        if self.left < 0:
            raise Spent
        return self.answer(groups) if groups else {}

    def ask(self, *groups: Iterable[int]) -> List[bool]:
        """Whether each of these disjoint groups passes. What fails alone is repeated at once, what fails
        together once it is named."""
        asked = [tuple(sorted(g)) for g in groups]
        new = [g for g in asked if g and self.known_to_pass(g) is None]
        passed = self.run(new)
        self.recurs([g for g in new if len(g) == 1 and not passed[g]])
        self.known.update({frozenset(g): passed[g] for g in new})
        return [not g or bool(self.known_to_pass(g)) for g in asked]

    def recurs(self, groups: Round, fine: bool = False) -> None:
        """Raises Unsteady for one of these that does not end as before."""
        again = self.run(groups)
        for group in (g for g in groups if again[g] != fine):
            raise Unsteady(group)

    def passes(self, group: Iterable[int]) -> bool:
        return self.ask(group)[0]

    def confirm(self) -> None:
        """The smallest group that failed must go on failing, the largest that passed must go on passing: what
        comes and goes passes once by chance, and then it looks like another fault."""
        passed = [k for k, fine in self.known.items() if fine]
        most = [tuple(sorted(k)) for k in passed if len(k) > 1 and not any(k < other for other in passed)]
        for group, fine in [(self.smallest, False)] * CONFIRM + [
            (g, True) for g in sorted(most, key=len)[-CONFIRM:] * (CONFIRM // 2)
        ]:
            self.recurs([group], fine)

    @property
    def smallest(self) -> Group:
        """The smallest group that failed."""
        return tuple(sorted(min((k for k, passed in self.known.items() if not passed), key=len)))
