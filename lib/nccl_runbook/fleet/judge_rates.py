"""Nodes that fail in some nights: how often, and whether that is more than the other nodes."""

import math
from collections import Counter
from collections.abc import Collection, Iterable

from nccl_runbook.core.facts import Evidence, grouped
from nccl_runbook.core.findings import Finding, Remedy, Severity
from nccl_runbook.fleet.facts import Fleet, History, Line, Rate
from nccl_runbook.hosts.judge import leave_out
from nccl_runbook.search.group_testing import wilson

SURE = 0.05  # a node of the whole fleet is named by chance


def rates(history: History) -> list[Rate]:
    """Each node that failed in any night, the surest first. A night in which most tested nodes failed says
    nothing about one node, and does not count; nor does one in which the node was not tested."""
    nights = [night.values() for night in history.lines.values() if not _common(night.values())]
    lines = [line for night in nights for line in night if line.tested]
    tested = Counter(line.node for line in lines)
    failures = grouped((line.node, line.night) for line in lines if line.failed)
    all_failed = sum(map(len, failures.values()))
    made = []
    for node, failed_in in failures.items():
        count = len(failed_in)
        low, high = wilson(count, tested[node])
        by_chance = chance(count, tested[node], all_failed, len(lines))
        made.append(
            Rate(node, count, tested=tested[node], low=low, high=high, chance=by_chance, last=max(failed_in))
        )
    return sorted(made, key=lambda rate: (rate.chance, rate.node))


def chance(failed: int, tested: int, all_failed: int, all_tested: int) -> float:
    """Probability that a node fails so often or more often if all nodes fail alike (Fisher's exact test, one
    side)."""

    def ways(most: int, some: int) -> float:
        return math.lgamma(most + 1) - math.lgamma(some + 1) - math.lgamma(most - some + 1)

    whole, others = ways(all_tested, all_failed), all_tested - tested
    counts = range(max(failed, all_failed - others), min(tested, all_failed) + 1)
    return min(1.0, sum(math.exp(ways(tested, n) + ways(others, all_failed - n) - whole) for n in counts))


def _common(lines: Collection[Line]) -> bool:
    return 2 * sum(line.failed for line in lines) > sum(line.tested for line in lines) > 1


def flaky(fleet_rates: Iterable[Rate], nodes: int) -> list[Rate]:
    """Nodes that fail more often than chance explains among so many nodes (Bonferroni), also in every
    night."""
    return [rate for rate in fleet_rates if rate.chance < SURE / max(1, nodes)]


def judge_rates(fleet: Fleet) -> list[Finding]:
    """A warning for each node that fails more often than the others."""
    return [
        Finding(
            "fleet-node-fails-sometimes",
            Severity.WARN,
            f"{rate.node} {rate.text}, more often than the other nodes.",
            (
                Evidence(f"last failed in the night of {rate.last}", rate.node),
                Evidence(
                    f"probability that this happens by chance: {rate.chance:.2g} (Fisher's exact test)",
                    "nights of all nodes",
                ),
            ),
            (
                *leave_out([rate.node]),
                Remedy(
                    "the administrator",
                    "Test this node for longer"
                    + (", because it passes in most nights." if 2 * rate.failed < rate.tested else "."),
                ),
            ),
        )
        for rate in fleet.flaky
    ]
