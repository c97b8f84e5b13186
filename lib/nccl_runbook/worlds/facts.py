"""Facts of the experiments: worlds that differ in one thing."""

import dataclasses
from typing import Dict, List, Optional, Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import World

NOT_RUN = Gap("not-run")


@dataclasses.dataclass(frozen=True)
class Trial:
    """One world, and the same once more in fresh processes where the first did not pass."""

    name: str
    world: World
    again: Optional[World] = None

    @property
    def passed(self) -> bool:
        return self.world.passed

    @property
    def failed_twice(self) -> bool:
        return self.again is not None and not self.passed and not self.again.passed


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Worlds of 1, 2, ... N ranks in order; it ends at the first that fails. ``wanted``: the sizes that were
    to be tried."""

    backend: str
    wanted: List[int]
    rungs: List[Trial]

    @property
    def first_failing(self) -> Optional[Trial]:
        return next((t for t in self.rungs if not t.passed), None)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two GPUs (cuda_index) by themselves; ``beside``: how many other pairs ran at the same time."""

    first: int
    second: int
    beside: int
    trial: Trial


@dataclasses.dataclass(frozen=True)
class Singles:
    """Each GPU by itself, all at the same time: trials by cuda_index as text."""

    trials: Dict[str, Trial]


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs of GPUs, disjoint pairs at the same time; ``wanted``: how many there are."""

    wanted: int
    pairs: List[Pair]

    def worst(self, op: str = "send_recv") -> Optional[Pair]:
        """The pair that failed, else the one with the least bandwidth."""
        timed = (p for p in self.pairs if p.trial.world.busbw_gb_per_s(op) is not None)
        return next(
            (p for p in self.pairs if not p.trial.passed),
            min(timed, key=lambda p: p.trial.world.busbw_gb_per_s(op) or 0.0, default=None),
        )


@dataclasses.dataclass(frozen=True)
class SearchRound:
    """Disjoint groups of GPUs (cuda_index) that ran at the same time, and whether every rank of each
    passed."""

    groups: List[List[int]]
    passed: List[bool]


@dataclasses.dataclass(frozen=True)
class Search:
    """What was run to find the GPU or the link, in order. ``example``: the failed world with the fewest GPUs;
    ``why``: "" where the search ended by itself, else why it did not."""

    gpus: List[int]
    rounds: List[SearchRound]
    example: Union[World, Gap]
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Arm:
    """One factor switched off or narrowed, or for *clean* taken out (None). ``acts_on``: transports,
    algorithms or protocols, as NCCL's log names them, of which less must be left if it acted."""

    name: str
    env: Dict[str, Optional[str]]
    acts_on: List[str]
    trial: Union[Trial, Gap]


@dataclasses.dataclass(frozen=True)
class Guilty:
    """``variables`` with their values; ``among``: how many there were; ``asked``: worlds it took;
    ``why_not``: "" where it is settled, that is: they alone bring the effect back and the others do not (see
    search/halving.py)."""

    variables: Dict[str, str]
    among: int
    asked: int
    why_not: str = ""


@dataclasses.dataclass(frozen=True)
class Arms:
    """The arms between two runs of the control, which differs from the user's environment in nothing but
    logging.

    ``clean``: the same without the variables that may steer NCCL; ``guilty``: which of those the difference
    hangs on.
    """

    backend: str
    control: Trial
    arms: List[Arm]
    control_after: Union[Trial, Gap]
    clean: Union[Arm, Gap] = NOT_RUN
    guilty: Union[Guilty, Gap] = Gap("not-run", "the environment makes no visible difference")

    def __getitem__(self, name: str) -> World:
        """The world of that arm, or of "control". Raises KeyError naming the arms that were run."""
        arms = [*self.arms, *([] if isinstance(self.clean, Gap) else [self.clean])]
        run = {"control": self.control, **{a.name: a.trial for a in arms if isinstance(a.trial, Trial)}}
        if name not in run:
            raise KeyError(f"no variant {name!r}; these ran: {', '.join(run)}")
        return run[name].world
