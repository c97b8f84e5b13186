"""Facts of a comparison: two set-ups, what they differ in, and what each run of them gave."""

import dataclasses

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import Sample as Sample

NOT_SET, HIDDEN = "not set", "set, not shown"


@dataclasses.dataclass(frozen=True)
class Difference:
    """One setting that A and B do not share. ``setting``: its name, with its role in front where it has one
    (``trainer:LD_PRELOAD``); ``a``, ``b``: values as they may be shown, else NOT_SET or HIDDEN."""

    setting: str
    a: str
    b: str


@dataclasses.dataclass(frozen=True)
class Tried:
    """One step of a walk: ``keys`` as in B, and its share of the effect (0 as A, 1 as B)."""

    keys: list[str]
    share: float | Gap


@dataclasses.dataclass(frozen=True)
class Walk:
    """From A to B by halving what they differ in. ``named``: the fewest differences that were seen to carry
    the effect; ``why_not``: "" where that is settled, else why not ("budget spent", "confounded",
    ...); ``tried``: in order."""

    named: list[str]
    why_not: str
    tried: list[Tried]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A against B. ``what``: what was run, in words; ``unit``: of its figures ("s", "" for the user's own);
    ``more_is_better``: of the figures; ``left_out``: name -> why it was not changed; ``warm_up``: runs that
    do not count, in ranks with NCCL's log at INFO, to see that a setting acted; ``samples``: the interleaved
    runs A B B A A B ..., in order; ``wanted``: how many of them; ``walk``: a Gap where there was nothing
    to walk; ``stopped``: who ended it before its end, "" for nobody."""

    what: str
    unit: str
    more_is_better: bool
    arms: list[str]
    differences: list[Difference]
    left_out: dict[str, str]
    wanted: int
    warm_up: list[Sample]
    samples: list[Sample]
    walk: Walk | Gap
    stopped: str = ""
