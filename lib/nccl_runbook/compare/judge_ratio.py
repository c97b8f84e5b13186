"""How large the difference between two arms is, and how sure."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from nccl_runbook.compare.facts import Comparison, Sample
from nccl_runbook.core.facts import Gap

# two-sided 95 % and 99 % points of Student's t by degrees of freedom (any statistics table); between two
# of them the smaller one counts
_T = {
    1: (12.706, 63.657),
    2: (4.303, 9.925),
    3: (3.182, 5.841),
    4: (2.776, 4.604),
    5: (2.571, 4.032),
    6: (2.447, 3.707),
    7: (2.365, 3.499),
    8: (2.306, 3.355),
    9: (2.262, 3.25),
    11: (2.201, 3.106),
    15: (2.131, 2.947),
    23: (2.069, 2.807),
    60: (2.0, 2.66),
}

LEAST_EFFECT = 1.05  # a smaller difference is reported, but is no fault and is not walked


@dataclasses.dataclass(frozen=True)
class Ratio:
    """B over A. ``low``, ``high``: 95 % interval, from t on the log ratio of neighbouring runs, one of each
    arm; ``n``: number of such pairs; ``is_sure``: the 99 % interval excludes 1 too, which is required to
    blame a setting."""

    value: float
    low: float
    high: float
    n: int
    is_sure: bool

    @property
    def holds_one(self) -> bool:
        """Whether the interval contains 1: no difference is proven."""
        return self.low <= 1.0 <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g} at 95 % confidence, {self.n} pairs)"


def figure(sample: Sample, name: str) -> float | None:
    """Median of one run's values; None if the run failed or a value has no logarithm."""
    values = sample.figures.get(name, []) if sample.passed else []
    return statistics.median(values) if values and min(values) > 0 else None


def names(c: Comparison) -> list[str]:
    """Names of all figures, in the order of their first appearance."""
    return list(dict.fromkeys(n for s in c.samples for n in s.figures))


def of_arm(c: Comparison, arm: str) -> list[Sample]:
    """Samples of one arm, in order."""
    return [s for s in c.samples if s.arm == arm]


def ratio(c: Comparison, name: str) -> Ratio | None:
    """The ratio of a figure; None with fewer than two pairs of neighbouring runs."""
    values = [(s.arm, figure(s, name)) for s in c.samples]
    logs = [
        math.log(p["B"] / p["A"])
        for p in [dict(values[i : i + 2]) for i in range(0, len(values) - 1, 2)]
        if p["A"] and p["B"]
    ]
    if len(logs) < 2:
        return None
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    half, wide = (t * error for t in _T[max(df for df in _T if df < len(logs))])
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs), abs(mean) > wide)


def one_fails(c: Comparison) -> str:
    """The arm that never passes while the other always does, at least twice; empty if there is none."""
    passed = {arm: [s.passed for s in of_arm(c, arm)] for arm in "AB"}
    return (
        next((x for x, y in ("AB", "BA") if not any(passed[x]) and all(passed[y])), "")
        if min(map(len, passed.values())) > 1
        else ""
    )


def carried(c: Comparison) -> str | None:
    """The figure in which A and B differ by more than LEAST_EFFECT; empty if one of them fails, None without
    a difference."""
    if one_fails(c):
        return ""
    return next(
        iter(
            {
                n: r
                for n in names(c)
                if (r := ratio(c, n)) and r.is_sure and max(r.value, 1 / r.value) >= LEAST_EFFECT
            }
        ),
        None,
    )


def share(c: Comparison, samples: Sequence[Sample], name: str) -> float | Gap:
    """How much of the effect these runs show (0 like A, 1 like B), by logarithms of medians; a Gap if
    unknown."""
    if not name:
        return statistics.fmean(s.passed == of_arm(c, "B")[0].passed for s in samples)
    a, b, here = (median_of(x, name) for x in (of_arm(c, "A"), of_arm(c, "B"), samples))
    return math.log(here / a) / math.log(b / a) if a and b and here else Gap("failed", samples[-1].ended)


def median_of(samples: Sequence[Sample], name: str) -> float | None:
    """The median of a figure over these samples; None if none has it."""
    values = [v for s in samples if (v := figure(s, name)) is not None]
    return statistics.median(values) if values else None
