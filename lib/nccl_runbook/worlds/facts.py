"""Facts of the experiments: worlds that differ in one thing."""

import dataclasses
from typing import Dict, List, Optional, Union

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import World

NOT_RUN = Gap("not-run")


@dataclasses.dataclass(frozen=True)
class Trial:
    """One world, and its repetition in fresh processes if it did not pass."""

    name: str
    world: World
    again: Optional[World] = None

    @property
    def passed(self) -> bool:
        """Whether the first run passed."""
        return self.world.passed

    @property
    def failed_twice(self) -> bool:
        """Whether the world failed and its repetition failed too."""
        return self.again is not None and not self.passed and not self.again.passed


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Worlds of 1, 2, ... N ranks in order, up to the first that fails; the last may be that of N ranks
    although smaller ones were not tried. ``wanted``: the sizes to try."""

    backend: str
    wanted: List[int]
    rungs: List[Trial]

    @property
    def first_failing(self) -> Optional[Trial]:
        """The first world that failed, or None."""
        return next((t for t in self.rungs if not t.passed), None)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two GPUs (cuda_index) alone; ``beside``: number of other pairs that ran at the same time."""

    first: int
    second: int
    beside: int
    trial: Trial


@dataclasses.dataclass(frozen=True)
class Singles:
    """Each GPU alone, all at the same time: cuda_index as text -> trial."""

    trials: Dict[str, Trial]


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs of GPUs; disjoint pairs ran at the same time. ``wanted``: number of pairs to try."""

    wanted: int
    pairs: List[Pair]

    def worst(self, op: str = "send_recv") -> Optional[Pair]:
        """A pair that failed, else the pair with the least bandwidth; None without pairs."""
        timed = (p for p in self.pairs if p.trial.world.busbw_gb_per_s(op) is not None)
        return next(
            (p for p in self.pairs if not p.trial.passed),
            min(timed, key=lambda p: p.trial.world.busbw_gb_per_s(op) or 0.0, default=None),
        )


@dataclasses.dataclass(frozen=True)
class SearchRound:
    """Disjoint groups of GPUs (cuda_index) that ran at the same time; whether every rank of each passed."""

    groups: List[List[int]]
    passed: List[bool]


@dataclasses.dataclass(frozen=True)
class Search:
    """Rounds that located the GPU or link, in order. ``example``: the failed world with the fewest GPUs;
    ``why``: why the search stopped early, empty if it did not."""

    gpus: List[int]
    rounds: List[SearchRound]
    example: Union[World, Gap]
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Arm:
    """One factor switched off or limited, or removed for *clean* (None). ``acts_on``: transports, algorithms
    or protocols, as NCCL's log names them; if the arm acted, fewer of them are used."""

    name: str
    env: Dict[str, Optional[str]]
    acts_on: List[str]
    trial: Union[Trial, Gap]


@dataclasses.dataclass(frozen=True)
class Guilty:
    """Variables that cause the effect, with their values. ``among``: number of candidates; ``asked``: worlds
    run; ``why_not``: why it is not proven, empty if they alone bring the effect back and the others do not
    (search/halving.py)."""

    variables: Dict[str, str]
    among: int
    asked: int
    why_not: str = ""


@dataclasses.dataclass(frozen=True)
class Arms:
    """The arms between two runs of the control, which adds only logging to the user's environment.
    ``clean``: without the variables that may steer NCCL; ``guilty``: those of them that make the
    difference."""

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
