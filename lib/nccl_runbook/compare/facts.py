"""Facts of a comparison: two set-ups, their differences, and the result of each run."""

import dataclasses

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import Sample as Sample

NOT_SET, HIDDEN = "not set", "set, not shown"


@dataclasses.dataclass(frozen=True)
class Difference:
    """One setting that differs. ``setting``: its name, after its role if it has one
    (``trainer:LD_PRELOAD``); ``a``, ``b``: values that may be shown, else NOT_SET or HIDDEN."""

    setting: str
    a: str
    b: str


@dataclasses.dataclass(frozen=True)
class Tried:
    """One step of a walk: ``keys`` as in B, and its share of the effect (0 like A, 1 like B)."""

    keys: list[str]
    share: float | Gap


@dataclasses.dataclass(frozen=True)
class Walk:
    """From A to B by halving their differences. ``named``: the smallest set seen to cause the effect;
    ``why_not``: why it is not proven ("budget spent", "confounded", ...), else empty; ``tried``: in
    order."""

    named: list[str]
    why_not: str
    tried: list[Tried]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A against B. ``what``: in words; ``unit``: of the figures ("s", empty for the user's own);
    ``more_is_better``; ``left_out``: name -> why it was not changed; ``warm_up``: runs that do not count,
    with NCCL's log at INFO to prove that settings act; ``samples``: interleaved runs A B B A A B ..., in
    order; ``wanted``: their planned number; ``walk``: a Gap if there was nothing to walk; ``stopped``: what
    ended it early, else empty; ``backend``: of the ranks, "" for the user's command."""

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
    backend: str = ""
