"""Findings of step 03: the number of ranks that fails, and the GPU, pair of GPUs or split at fault."""

import dataclasses

from nccl_runbook.causes.causes import NOT_SEEN, causes, remedies
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import World
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.messages.printed.failed_world import explain
from nccl_runbook.search.group_testing import Diagnosis, replay, wilson
from nccl_runbook.search.outcomes import most_runs
from nccl_runbook.worlds.facts import NOT_RUN, Ladder, Pairs, Search, Singles
from nccl_runbook.worlds.judge_culprits import A_PART, culprits, gpus, look_at

SHARED = Remedy(
    "you",
    "Check what all GPUs share: the size of /dev/shm, NCCL's variables, the driver, its fabric "
    "manager, ACS and IOMMU. Step 04-transports turns off one transport at a time:",
    ("nccl-runbook run --step 02-environment 04-transports", "df -h /dev/shm"),
)


def judge_worlds(
    ladder: Ladder | Gap, singles: Singles | Gap, pairs: Pairs | Gap, search: Search | Gap = NOT_RUN
) -> list[Finding]:
    """Findings of step 03."""
    if isinstance(ladder, Gap):
        return [Finding("not-run", Severity.UNKNOWN, ladder.detail or str(ladder))]
    if ladder.backend == "gloo":
        return _rehearsal(ladder)
    trials = {} if isinstance(singles, Gap) else singles.trials
    alone = [
        explain("gpu-fails-alone", f"GPU {gpu} alone", trial.world, trial.again)
        for gpu, trial in trials.items()
        if not trial.passed
    ]
    located = _search(search)
    findings = [*located, *_ladder(ladder), *alone, *([] if located else _pairs(pairs))]
    return findings or [_healthy(ladder, pairs)]


def _sizes(ladder: Ladder) -> str:
    sizes = [str(t.world.request.world_size) for t in ladder.rungs]
    return " and ".join([", ".join(sizes[:-1]), sizes[-1]] if len(sizes) > 1 else sizes) + (
        " ranks" if sizes != ["1"] else " rank"
    )


def _rehearsal(ladder: Ladder) -> list[Finding]:
    if failing := ladder.first_failing:
        return [explain("rehearsal-fails", f"{failing.name} on the CPU", failing.world, failing.again)]
    return [
        _unknown(
            "rehearsed",
            f"no GPU was used. A rehearsal on Gloo with {_sizes(ladder)} gave correct results",
            "barrier, all_reduce, broadcast, all_gather and send/recv ran over Gloo on the CPU, and "
            "every element was checked",
        )
    ]


def _unknown(rule: str, title: str, text: str) -> Finding:
    return Finding(rule, Severity.UNKNOWN, title, (Evidence(text, "table below"),))


def _ladder(ladder: Ladder) -> list[Finding]:
    if failing := ladder.first_failing:
        return [explain("first-failing-world-size", failing.name, failing.world, failing.again)]
    largest = max((rung.world.request.world_size for rung in ladder.rungs), default=0)
    untried = ", ".join(str(size) for size in ladder.wanted if size > largest)
    return (
        [
            _unknown(
                "ladder-not-finished",
                f"the time budget ended before the test with {untried} ranks",
                f"passed: {_sizes(ladder)}",
            )
        ]
        if untried
        else []
    )


def _pairs(pairs: Pairs | Gap) -> list[Finding]:
    if isinstance(pairs, Gap):
        return []
    failed = [p for p in pairs.pairs if not p.trial.passed]
    if len(failed) == len(pairs.pairs) > 1:  # the others are the recurrence
        return [_every_pair("every pair of GPUs", failed[0].trial.world, failed[1].trial.world)]
    findings = [
        explain("pair-fails", f"GPUs {p.first} and {p.second}", p.trial.world, p.trial.again) for p in failed
    ]
    unfinished = _unknown(
        "pairs-not-finished",
        f"the time budget ended after {len(pairs.pairs)} of {pairs.wanted} pairs of GPUs",
        "raise budget_s to test all pairs",
    )
    return findings + ([unfinished] if len(pairs.pairs) < pairs.wanted else [])


def _every_pair(what: str, world: World, again: World) -> Finding:
    """Every pair fails: suspect what all share, unless the ranks themselves name the cause."""
    finding = explain("every-pair-fails", what, world, again)
    return (
        finding
        if finding.status in ("established", "likely")
        else dataclasses.replace(finding, remedy=(SHARED,))
    )


def diagnosis(search: Search) -> Diagnosis:
    """The diagnosis that the recorded rounds support: the search is replayed with their answers."""
    return replay(
        search.gpus, [dict(zip(map(tuple, r.groups), r.passed, strict=False)) for r in search.rounds]
    )


def _words(diagnosed: Diagnosis) -> tuple[str, str, str]:
    """(rule, title, cause) of the fault that was located; empty texts if none was."""
    bad = culprits(diagnosed)
    if diagnosed.kind == "count":
        return (
            "count-at-fault",
            f"any {diagnosed.works_up_to} GPUs pass, and any {diagnosed.works_up_to + 1} GPUs fail, so the "
            "number of GPUs matters, not which GPUs",
            "",
        )
    if diagnosed.kind == "split":
        return "split-at-fault", bad, "p2p-broken-acs-iommu"
    if bad and diagnosed.gpus and not diagnosed.pairs:
        return "located", f"{bad}; the other GPUs pass together", A_PART
    return (
        ("located", f"{bad}; each of these GPUs passes with the other GPUs", A_PART) if bad else ("", "", "")
    )


def _search(search: Search | Gap) -> list[Finding]:
    """The finding about the GPU, link, split or count; with a rate for an intermittent fault."""
    if isinstance(search, Gap):
        return []
    diagnosed = diagnosis(search)
    example = search.example
    sizes = [len(group) for r in search.rounds for group in r.groups]
    twice = (
        "; the named GPUs failed at least twice, in new processes" if diagnosed.kind != "intermittent" else ""
    )
    runs = Evidence(
        f"{len(sizes)} runs in {len(search.rounds)} rounds (the search needs at most "
        f"{most_runs(len(search.gpus))} runs){twice}",
        "table below",
    )
    if diagnosed.kind == "intermittent":
        return [_rate(diagnosed, runs, example)]
    if diagnosed.works_up_to == 1 and isinstance(example, World):
        every = _every_pair(
            f"every GPU passes alone, and every tested pair fails ({sizes.count(2)} pairs), so suspect "
            "something that the GPUs share; a pair",
            example,
            example,
        )  # the other pairs are the recurrence
        return [dataclasses.replace(every, evidence=(runs, *every.evidence, NOT_SEEN))]
    rule, title, cause_id = _words(diagnosed)
    if not rule:
        why = search.why or "the results fit no known fault, or the search needs more runs"
        return [
            Finding(
                "search-not-finished",
                Severity.UNKNOWN,
                f"the faulty GPU or link was not found, because {why}; the smallest group that failed "
                f"is {gpus(diagnosed.within)}",
                (runs,),
            )
        ]
    cause = causes().get(cause_id)
    of_example = () if isinstance(example, Gap) else explain(rule, "it", example, example).evidence
    remedy = (
        (look_at(diagnosed, [example]),)
        if rule == "located" and isinstance(example, World)
        else remedies(cause)
    )
    return [
        Finding(
            rule,
            Severity.BROKEN,
            title,
            (runs, *of_example, NOT_SEEN),
            remedy,
            cause=cause.id if cause else None,
            status="likely" if cause else None,
        )
    ]


def _rate(diagnosed: Diagnosis, runs: Evidence, example: World | Gap) -> Finding:
    low, high = wilson(diagnosed.failed, diagnosed.repeated)
    again = Remedy(
        "you",
        "Before you change anything, repeat the test often enough that you would see the effect of a change:",
        () if isinstance(example, Gap) else (example.shell_line,),
    )
    return Finding(
        "intermittent",
        Severity.WARN,
        f"intermittent: {gpus(diagnosed.within)} failed {diagnosed.failed} of {diagnosed.repeated} "
        f"times ({low:.0%} to {high:.0%} at 95 % confidence)",
        (runs,),
        (again,),
    )


def _healthy(ladder: Ladder, pairs: Pairs | Gap) -> Finding:
    lines = [
        "barrier, all_reduce, broadcast, all_gather and send/recv ran with up to 256 MiB, and every "
        "element was checked"
    ]
    tried = Pairs(0, []) if isinstance(pairs, Gap) else pairs
    if (worst := tried.worst()) and (bandwidth := worst.trial.world.busbw_gb_per_s("send_recv")):
        lines.append(f"slowest pair: GPUs {worst.first} and {worst.second}, send/recv {bandwidth:.1f} GB/s")
    return Finding(
        "fewer-gpus-pass",
        Severity.OK,
        _sizes(ladder)
        + (f", and every one of {len(tried.pairs)} pairs" if len(tried.pairs) > 1 else "")
        + ": all passed",
        tuple(Evidence(text, "table below") for text in lines),
    )
