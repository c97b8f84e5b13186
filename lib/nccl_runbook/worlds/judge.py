"""With how many ranks does it fail, on which GPU, between which two."""

from __future__ import annotations

import dataclasses

from nccl_runbook.causes.causes import causes
from nccl_runbook.causes.failures import NOT_SEEN, explain, remedies
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.core.world import World
from nccl_runbook.search.group_testing import Diagnosis, most_runs
from nccl_runbook.search.recorded import replay, wilson
from nccl_runbook.worlds.facts import Ladder, Pair, Pairs, Search, Singles
from nccl_runbook.worlds.judge_narrowest import A_PART, culprits, gpus, look_at

RESTS_ON = ()  # a ladder that was not run is judged below
REHEARSED_ON = "no GPU was used: rehearsed on Gloo"
SHARED = Remedy("you", "Look at what all GPUs share: the size of /dev/shm, the variables of NCCL, the driver, its fabric manager, ACS and "
                "IOMMU. 04 switches each transport off:", ("nccl-runbook run --step 02-environment 04-transports", "df -h /dev/shm"))


NOT_SEARCHED = Gap("not-run")


def judge(ladder: Ladder | Gap, singles: Singles | Gap, pairs: Pairs | Gap, search: Search | Gap = NOT_SEARCHED) -> list[Finding]:
    """Findings of step 03."""
    if isinstance(ladder, Gap):
        return [Finding("not-run", Severity.UNKNOWN, ladder.detail or str(ladder))]
    if ladder.backend == "gloo":
        return _rehearsal(ladder)
    located = _search(search)
    return [*located, *_ladder(ladder), *_singles(singles), *([] if located else _pairs(pairs))] or [_healthy(ladder, pairs)]


def _sizes(ladder: Ladder) -> str:
    sizes = [str(t.world.request.world_size) for t in ladder.rungs]
    return " and ".join([", ".join(sizes[:-1]), sizes[-1]] if len(sizes) > 1 else sizes) + (" ranks" if sizes != ["1"] else " rank")


def _rehearsal(ladder: Ladder) -> list[Finding]:
    if failing := ladder.first_failing:
        return [explain("rehearsal-fails", f"rehearsal on the CPU: {failing.name}", failing.world, failing.again)]
    evidence = Evidence("barrier, all_reduce, broadcast, all_gather, send/recv over Gloo on the CPU, every element checked", "table below")
    return [Finding("rehearsed", Severity.UNKNOWN, f"{REHEARSED_ON} with {_sizes(ladder)}, all right", (evidence,))]


def _ladder(ladder: Ladder) -> list[Finding]:
    if failing := ladder.first_failing:
        return [explain("first-failing-world-size", failing.name, failing.world, failing.again)]
    if untried := [str(n) for n in ladder.wanted[len(ladder.rungs) :]]:
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
    if len(failed) == len(pairs.pairs) > 1:  # the others are the recurrence
        return [_every_pair("every pair of GPUs", failed[0].trial.world, failed[1].trial.world)]
    found = [explain("pair-fails", f"GPUs {p.first} and {p.second}", p.trial.world, p.trial.again) for p in failed]
    if len(pairs.pairs) < pairs.wanted:
        title = f"the budget ended after {len(pairs.pairs)} of {pairs.wanted} pairs"
        found.append(Finding("pairs-not-finished", Severity.UNKNOWN, title, (Evidence("raise budget_s to test them all", "table below"),)))
    return found


def _every_pair(what: str, world: World, again: World) -> Finding:
    """Not a GPU or a link: what all share, unless the ranks themselves say what it is."""
    told = explain("every-pair-fails", what, world, again)
    return told if told.cause else dataclasses.replace(told, remedy=(SHARED,))


def diagnosis(search: Search) -> Diagnosis:
    """What the recorded rounds show: the search is walked again with their answers."""
    return replay(search.gpus, [dict(zip(map(tuple, r.groups), r.passed, strict=False)) for r in search.rounds])


def _words(told: Diagnosis) -> tuple[str, str, str | None]:
    """(rule, title, cause) of what was found; no rule where the search names nothing."""
    if told.kind == "count":
        most = told.works_up_to
        return "count-at-fault", f"{most} GPUs work together, and {most + 1} do not, whichever were tried: it is how many, not which", None
    if told.kind == "split":
        return "split-at-fault", culprits(told), "p2p-broken-acs-iommu"
    bad = culprits(told)
    rest = "the others pass together" if told.gpus and not told.pairs else "each passes with the others"
    return ("located", f"{bad}; {rest}", A_PART) if bad else ("", "", None)


def _search(search: Search | Gap) -> list[Finding]:
    """The GPU, the link, the split or the count; a rate for what comes and goes."""
    if isinstance(search, Gap):
        return []
    told, runs = diagnosis(search), sum(len(r.groups) for r in search.rounds)
    twice = "; what is named failed at least twice, in fresh processes" * (told.kind != "intermittent")
    seen = [Evidence(f"{runs} worlds of at most {most_runs(len(search.gpus))}, in {len(search.rounds)} rounds{twice}", "table below")]
    if told.kind == "intermittent":
        return [_rate(told, seen, search)]
    if told.works_up_to == 1 and isinstance(search.example, World):
        tried = sum(len(group) == 2 for r in search.rounds for group in r.groups)
        what = f"no two GPUs work together ({tried} pairs tried), each does alone: not a GPU or a pair, look at what all share; a pair"
        found = _every_pair(what, search.example, search.example)  # the other pairs are the recurrence
        return [dataclasses.replace(found, evidence=(*seen, *found.evidence, NOT_SEEN))]
    rule, title, cause_id = _words(told)
    if not rule:
        why = search.why or "what was seen fits no fault that is known, or takes more worlds than that"
        title = f"which GPU or link it is was not found: {why}; the smallest group that failed: {gpus(told.within)}"
        return [Finding("search-not-finished", Severity.UNKNOWN, title, tuple(seen))]
    cause = causes().get(cause_id or "")
    seen += [*([] if isinstance(search.example, Gap) else explain(rule, "it", search.example, search.example).evidence), NOT_SEEN]
    remedy = (look_at(told, [search.example]),) if rule == "located" and isinstance(search.example, World) else remedies(cause)
    return [Finding(rule, Severity.BROKEN, title, tuple(seen), remedy, cause and cause.id, cause and "likely")]


def _rate(told: Diagnosis, seen: list[Evidence], search: Search) -> Finding:
    low, high = wilson(told.failed, told.repeated)
    title = f"it comes and goes: {gpus(told.within)} failed {told.failed} of {told.repeated} times ({low:.0%} to {high:.0%} at 95 %)"
    lines = () if isinstance(search.example, Gap) else (search.example.shell_line,)
    again = Remedy("you", "Before you change anything, repeat it so often that the change would show:", lines)
    return Finding("intermittent", Severity.WARN, title, tuple(seen), (again,))


def _healthy(ladder: Ladder, pairs: Pairs | Gap) -> Finding:
    evidence = [Evidence("barrier, all_reduce, broadcast, all_gather and send/recv up to 256 MiB, every element checked", "table below")]
    worst: Pair | None = None if isinstance(pairs, Gap) else pairs.worst()
    bandwidth = worst.trial.world.busbw_gb_per_s("send_recv") if worst else None
    if worst and bandwidth:
        evidence.append(Evidence(f"slowest pair: GPUs {worst.first} and {worst.second}, send/recv {bandwidth:.1f} GB/s", "table below"))
    every = "" if isinstance(pairs, Gap) else f", and every one of {len(pairs.pairs)} pairs" if len(pairs.pairs) > 1 else ""
    return Finding("fewer-gpus-pass", Severity.OK, f"{_sizes(ladder)}{every}: all right", tuple(evidence))
