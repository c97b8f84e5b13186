"""With how many ranks does it fail, on which GPU, between which two."""

from __future__ import annotations

from nccl_runbook.facts import Gap
from nccl_runbook.facts.experiments import Ladder, Pair, Pairs, Singles
from nccl_runbook.findings import Evidence, Finding, Severity
from nccl_runbook.rules.failures import explain

RESTS_ON = ()  # a ladder that was not run is judged below
REHEARSED_ON = "no GPU was used: rehearsed on Gloo"


def judge(ladder: Ladder | Gap, singles: Singles | Gap, pairs: Pairs | Gap) -> list[Finding]:
    """Findings of step 03."""
    if isinstance(ladder, Gap):
        return [Finding("not-run", Severity.UNKNOWN, ladder.detail or str(ladder))]
    if ladder.backend == "gloo":
        return _rehearsal(ladder)
    found = [*_ladder(ladder), *_singles(singles), *_pairs(pairs)]
    return found or [_healthy(ladder, pairs)]


def _sizes(ladder: Ladder) -> str:
    sizes = [str(t.world.request.world_size) for t in ladder.rungs]
    return " and ".join([", ".join(sizes[:-1]), sizes[-1]] if len(sizes) > 1 else sizes) + (" ranks" if sizes != ["1"] else " rank")


def _rehearsal(ladder: Ladder) -> list[Finding]:
    failing = ladder.first_failing
    if failing:
        return [explain("rehearsal-fails", f"rehearsal on the CPU: {failing.name}", failing.world, failing.again)]
    evidence = Evidence("barrier, all_reduce, broadcast, all_gather, send/recv over Gloo on the CPU, every element checked", "table below")
    return [Finding("rehearsed", Severity.UNKNOWN, f"{REHEARSED_ON} with {_sizes(ladder)}, all right", (evidence,))]


def _ladder(ladder: Ladder) -> list[Finding]:
    failing = ladder.first_failing
    if failing:
        return [explain("first-failing-world-size", failing.name, failing.world, failing.again)]
    untried = [str(n) for n in ladder.wanted[len(ladder.rungs) :]]
    if untried:
        title = f"the budget ended before {', '.join(untried)} ranks"
        return [Finding("ladder-not-finished", Severity.UNKNOWN, title, (Evidence(f"passed: {_sizes(ladder)}", "table below"),))]
    return []


def _singles(singles: Singles | Gap) -> list[Finding]:
    if isinstance(singles, Gap):
        return []
    return [explain("gpu-fails-alone", f"GPU {g} alone", t.world, t.again) for g, t in singles.trials.items() if not t.passed]


def _pairs(pairs: Pairs | Gap) -> list[Finding]:
    if isinstance(pairs, Gap):
        return []
    failed = [p for p in pairs.pairs if not p.trial.passed]
    found = [explain("pair-fails", f"GPUs {p.first} and {p.second}", p.trial.world, p.trial.again) for p in failed]
    if len(pairs.pairs) < pairs.wanted:
        title = f"the budget ended after {len(pairs.pairs)} of {pairs.wanted} pairs"
        found.append(Finding("pairs-not-finished", Severity.UNKNOWN, title, (Evidence("raise budget_s to test them all", "table below"),)))
    return found


def _healthy(ladder: Ladder, pairs: Pairs | Gap) -> Finding:
    evidence = [Evidence("barrier, all_reduce, broadcast, all_gather and send/recv up to 256 MiB, every element checked", "table below")]
    worst: Pair | None = None if isinstance(pairs, Gap) else pairs.worst()
    bandwidth = worst.trial.world.busbw_gb_per_s("send_recv") if worst else None
    if worst and bandwidth:
        evidence.append(Evidence(f"slowest pair: GPUs {worst.first} and {worst.second}, send/recv {bandwidth:.1f} GB/s", "table below"))
    every = "" if isinstance(pairs, Gap) else f", and every one of {len(pairs.pairs)} pairs" if len(pairs.pairs) > 1 else ""
    return Finding("fewer-gpus-pass", Severity.OK, f"{_sizes(ladder)}{every}: all right", tuple(evidence))
