"""With how many ranks does it fail, on which GPU, between which two; and 04's failing
control by pairs of GPUs."""

import collections
import dataclasses
from collections.abc import Mapping

from nccl_runbook.causes.causes import NOT_SEEN, causes, explain, remedies, table
from nccl_runbook.core.facts import Gap, World
from nccl_runbook.core.findings import NOTHING_KNOWN, Evidence, Finding, Remedy, Severity
from nccl_runbook.search.group_testing import Diagnosis, Group, most_runs, of_pairs, replay, wilson
from nccl_runbook.worlds.facts import NOT_RUN, Ladder, Pairs, Search, Singles

REHEARSED_ON = "no GPU was used: rehearsal on Gloo"
SHARED = Remedy(
    "you",
    "Check what all GPUs share: the size of /dev/shm, the variables of NCCL, the driver, "
    "its fabric manager, ACS and "
    "IOMMU. 04 switches off each transport:",
    ("nccl-runbook run --step 02-environment 04-transports", "df -h /dev/shm"),
)
A_PART = "gpu-or-link-fault"


def judge(
    ladder: Ladder | Gap, singles: Singles | Gap, pairs: Pairs | Gap, search: Search | Gap = NOT_RUN
) -> list[Finding]:
    """Findings of step 03."""
    if isinstance(ladder, Gap):
        return [Finding("not-run", Severity.UNKNOWN, ladder.detail or str(ladder))]
    if ladder.backend == "gloo":
        return _rehearsal(ladder)
    located = _search(search)
    alone = [
        explain("gpu-fails-alone", f"GPU {g} alone", t.world, t.again)
        for g, t in ({} if isinstance(singles, Gap) else singles.trials).items()
        if not t.passed
    ]
    return [*located, *_ladder(ladder), *alone, *([] if located else _pairs(pairs))] or [
        _healthy(ladder, pairs)
    ]


def _sizes(ladder: Ladder) -> str:
    sizes = [str(t.world.request.world_size) for t in ladder.rungs]
    return " and ".join([", ".join(sizes[:-1]), sizes[-1]] if len(sizes) > 1 else sizes) + (
        " ranks" if sizes != ["1"] else " rank"
    )


def _rehearsal(ladder: Ladder) -> list[Finding]:
    if failing := ladder.first_failing:
        return [
            explain("rehearsal-fails", f"rehearsal on the CPU: {failing.name}", failing.world, failing.again)
        ]
    return [
        _unknown(
            "rehearsed",
            f"{REHEARSED_ON} with {_sizes(ladder)}, all correct",
            "barrier, all_reduce, broadcast, all_gather, send/recv over Gloo on the CPU, "
            "every element checked",
        )
    ]


def _unknown(rule: str, title: str, text: str) -> Finding:
    return Finding(rule, Severity.UNKNOWN, title, (Evidence(text, "table below"),))


def _ladder(ladder: Ladder) -> list[Finding]:
    if failing := ladder.first_failing:
        return [explain("first-failing-world-size", failing.name, failing.world, failing.again)]
    untried = ", ".join(map(str, ladder.wanted[len(ladder.rungs) :]))
    return [
        _unknown(
            "ladder-not-finished", f"the budget ended before {untried} ranks", f"passed: {_sizes(ladder)}"
        )
    ] * bool(untried)


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
        f"the budget ended after {len(pairs.pairs)} of {pairs.wanted} pairs",
        "raise budget_s to test all",
    )
    return findings + [unfinished] * (len(pairs.pairs) < pairs.wanted)


def _every_pair(what: str, world: World, again: World) -> Finding:
    """Not a GPU or a link: what all share, unless the ranks themselves say what it is."""
    finding = explain("every-pair-fails", what, world, again)
    return finding if finding.cause else dataclasses.replace(finding, remedy=(SHARED,))


def diagnosis(search: Search) -> Diagnosis:
    """What the recorded rounds show: the search is walked again with their answers."""
    return replay(
        search.gpus, [dict(zip(map(tuple, r.groups), r.passed, strict=False)) for r in search.rounds]
    )


def _words(diagnosed: Diagnosis) -> tuple[str, str, str | None]:
    """(rule, title, cause) of what was found; no rule where the search names nothing."""
    most, bad = diagnosed.works_up_to, culprits(diagnosed)
    rest = (
        "the others pass together"
        if diagnosed.gpus and not diagnosed.pairs
        else "each passes with the others"
    )
    any_of = f"any {most} GPUs pass, and any {most + 1} fail: the count matters, not which GPU"
    return next(
        words
        for fits, words in (
            (diagnosed.kind == "count", ("count-at-fault", any_of, None)),
            (diagnosed.kind == "split", ("split-at-fault", bad, "p2p-broken-acs-iommu")),
            (bad, ("located", f"{bad}; {rest}", A_PART)),
            (True, ("", "", None)),
        )
        if fits
    )


def _search(search: Search | Gap) -> list[Finding]:
    """The GPU, the link, the split or the count; a rate for what comes and goes."""
    if isinstance(search, Gap):
        return []
    diagnosed, example, sizes = (
        diagnosis(search),
        search.example,
        [len(group) for r in search.rounds for group in r.groups],
    )
    twice = "; the named part failed at least twice, in fresh processes" * (diagnosed.kind != "intermittent")
    runs = Evidence(
        f"{len(sizes)} runs of at most {most_runs(len(search.gpus))}, in {len(search.rounds)} rounds{twice}",
        "table below",
    )
    if diagnosed.kind == "intermittent":
        return [_rate(diagnosed, runs, example)]
    if diagnosed.works_up_to == 1 and isinstance(example, World):
        every = _every_pair(
            f"every GPU passes alone, and every pair fails ({sizes.count(2)} tried): suspect something "
            "they share; a pair",
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
                f"the faulty GPU or link was not found: {why}; the smallest group that "
                f"failed: {gpus(diagnosed.within)}",
                (runs,),
            )
        ]
    cause = causes().get(cause_id or "")
    evidence = (
        runs,
        *(() if isinstance(example, Gap) else explain(rule, "it", example, example).evidence),
        NOT_SEEN,
    )
    remedy = (
        (look_at(diagnosed, [example]),)
        if rule == "located" and isinstance(example, World)
        else remedies(cause)
    )
    return [Finding(rule, Severity.BROKEN, title, evidence, remedy, cause and cause.id, cause and "likely")]


def _rate(diagnosed: Diagnosis, runs: Evidence, example: World | Gap) -> Finding:
    low, high = wilson(diagnosed.failed, diagnosed.repeated)
    again = Remedy(
        "you",
        "Before you change anything, repeat the test often enough to see an effect:",
        () if isinstance(example, Gap) else (example.shell_line,),
    )
    return Finding(
        "intermittent",
        Severity.WARN,
        f"intermittent: {gpus(diagnosed.within)} failed {diagnosed.failed} of "
        f"{diagnosed.repeated} times ({low:.0%} to {high:.0%} at 95 %)",
        (runs,),
        (again,),
    )


def _healthy(ladder: Ladder, pairs: Pairs | Gap) -> Finding:
    lines = ["barrier, all_reduce, broadcast, all_gather and send/recv up to 256 MiB, every element checked"]
    tried, worst = ([], None) if isinstance(pairs, Gap) else (pairs.pairs, pairs.worst())
    if worst and (bandwidth := worst.trial.world.busbw_gb_per_s("send_recv")):
        lines.append(f"slowest pair: GPUs {worst.first} and {worst.second}, send/recv {bandwidth:.1f} GB/s")
    title = f"{_sizes(ladder)}{f', and every one of {len(tried)} pairs' * (len(tried) > 1)}: all right"
    return Finding(
        "fewer-gpus-pass", Severity.OK, title, tuple(Evidence(text, "table below") for text in lines)
    )


# --- where it is


def gpus(group: tuple[int, ...] | list[int]) -> str:
    return f"GPU{'s' if len(group) > 1 else ''} {', '.join(map(str, group))}"


def culprits(diagnosed: Diagnosis) -> str:
    """ "at fault: GPU 2 with every partner, and the link between GPUs 0 and 1", the sides of a split; ""
    where nothing is named."""
    if diagnosed.sides:
        return f"{' and '.join(map(gpus, diagnosed.sides))} each work, but no pair across them does"
    bad = [
        *[f"{gpus(diagnosed.gpus)} with every partner"] * bool(diagnosed.gpus),
        *(f"the link between GPUs {a} and {b}" for a, b in diagnosed.pairs),
    ]
    return f"at fault: {', and '.join(bad)}" if bad else ""


def look_at(diagnosed: Diagnosis, worlds: list[World]) -> Remedy:
    """For whoever has the machine: what is at fault, by what it is called outside CUDA as far as the failing
    ``worlds`` say so."""
    hellos = {
        gpu: rank.first("hello") or {}
        for w in worlds
        for gpu, rank in zip(w.request.devices, w.ranks, strict=False)
    }
    buses = {
        gpu: hellos.get(gpu, {}).get("pci_bus_id")
        for gpu in sorted({*diagnosed.gpus, *sum(diagnosed.pairs, ())})
    }
    named = " and ".join(f"GPU {gpu}{f' (PCI bus {bus})' if bus else ''}" for gpu, bus in buses.items())
    return Remedy(
        "the administrator",
        "Others pass, so suspect a part rather than a setting of the host. Please check NVLink, slot and "
        f"Xids of {named}.",
        ("nvidia-smi topo -m", "nvidia-smi nvlink -e", "sudo dmesg -T | grep -iE 'Xid|nvlink' | head"),
    )


def narrowed(fault: Finding, pairs: Pairs | Gap) -> Finding:
    """The finding of a control that fails, with what was seen of two GPUs at a time in the same
    environment."""
    if isinstance(pairs, Gap):
        return fault
    ran = [
        p
        for p in pairs.pairs
        if not any(w is not None and w.ended == "lost" for w in (p.trial.world, p.trial.again))
    ]
    failed, passed = [[p for p in ran if p.trial.passed is fine] for fine in (False, True)]
    steady, untried = (
        not any(p.trial.again is not None and p.trial.again.passed for p in failed),
        pairs.wanted - len(ran),
    )
    diagnosed = of_pairs(
        {g for p in ran for g in (p.first, p.second)}, [(p.first, p.second) for p in failed] if steady else []
    )
    via = sorted(
        {
            name.partition("/")[0]
            for p in passed
            if not isinstance(p.trial.world.transports, Gap)
            for name in p.trial.world.transports
        }
    )
    # another pair may say otherwise
    sure = not untried and not any({p.first, p.second} & {*diagnosed.gpus} for p in passed)
    where = sure and culprits(diagnosed) or f"{len(failed)} of the tested pairs of GPUs fail alone"
    title = next(
        title
        for fits, title in (
            (
                passed and failed and steady,
                f"; {where} ({len(passed)} other pairs pass{' over ' * bool(via)}{' and '.join(via)})",
            ),
            (failed and steady, "; any two tested GPUs are enough"),
            (
                not failed and not untried,
                f"; no two GPUs alone show the failure: it needs more GPUs ({len(passed)} pairs pass)",
            ),
            (True, ""),
        )
        if fits
    )
    at_times = ", but not every time: intermittent" * (not steady)
    words = [
        *(f"GPUs {p.first} and {p.second} alone: {p.trial.world.ended}{at_times}" for p in failed),
        *[f"{untried} of {pairs.wanted} pairs were not tested"] * bool(untried),
    ]
    finding = dataclasses.replace(
        fault,
        title=fault.title + title,
        evidence=(
            *(Evidence(text, "table below") for text in words),
            *fault.evidence,
            *[NOT_SEEN] * (NOT_SEEN not in fault.evidence),
        ),
    )
    if passed and diagnosed.gpus + diagnosed.pairs:
        return _part_at_fault(finding, diagnosed, [p.trial.world for p in failed], via)
    return finding


def _without(failed: list[Group]) -> list[int]:
    """GPUs without which no pair that failed is left: that of most of them first."""
    ends = collections.Counter(sum(failed, ()))
    worst = max(ends, key=lambda gpu: (ends[gpu], gpu), default=None)
    return [] if worst is None else sorted([worst, *_without([pair for pair in failed if worst not in pair])])


def _part_at_fault(finding: Finding, diagnosed: Diagnosis, failed: list[World], via: list[str]) -> Finding:
    """Other pairs that pass over P2P, too, clear the host's settings, unless a GPU has nothing but failing
    ones: it may sit behind another bridge. Of a cause that has nothing to do with P2P nothing is changed."""
    around = Remedy(
        "you",
        "Workaround until it is fixed: "
        f"run without {gpus(_without([tuple(w.request.devices) for w in failed]))}: "
        "every other pair that was tried passes.",
    )
    if finding.cause is not None and (finding.cause != "p2p-broken-acs-iommu" or via != ["P2P"]):
        return dataclasses.replace(finding, remedy=(*finding.remedy, around))
    kept = (r for r in finding.remedy if r != NOTHING_KNOWN and (diagnosed.gpus or r.who == "you"))
    return dataclasses.replace(
        finding,
        cause=A_PART,
        status=finding.status or "likely",
        remedy=(look_at(diagnosed, failed), around, *kept),
    )


# the words that outcomes and answers are told in
_TABLE = table("worlds/transports")
REMOVES: dict[str, frozenset[str]] = {arm: frozenset(taken) for arm, taken in _TABLE["removes"].items()}
POINTS_TO: dict[str, tuple[str, str | None]] = {
    arm: (to, cause or None) for arm, (to, cause) in _TABLE["points_to"].items()
}
# kinds whose fault was planted or met on GPUs (tests/gpu/EVIDENCE.md): NCCL 2.28.9, 4 H200
SEEN_ON_HARDWARE = frozenset({"healthy", "explained", "variable", "p2p"})
FAILING = ("hung", "failed", "wrong values")
# passed, and no proof: what is at fault must be in what such an arm takes away, for else nothing was, or it
# comes and goes
UNSURE = {
    "no proof": "NCCL's log does not show an effect",
    "passed 1 of 2": "it failed once",
    "passed 1 of 1": "it was not repeated",
}


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """Outcomes in words, those of transports.toml: ``control`` (a failure that recurred by its own word),
    ``after`` (the control at the end, of ``again``), ``arms`` by name, without those that cannot act here,
    and ``clean``. ``settled``: clean passes and the guilty variables were proven; ``connected``: the control
    was seen to use something; ``message``: whether the ranks' own words or their end name the cause."""

    control: str
    after: str = "not run"
    arms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    clean: str = "not run"
    settled: bool = False
    connected: bool = True
    message: bool = False


@dataclasses.dataclass(frozen=True)
class Decision:
    """``kind``: one of transports.toml; ``arm``: the narrowest setting that works ("" if none is proven);
    ``cause`` with ``status``, or None; ``why``."""

    kind: str
    why: str
    arm: str = ""
    cause: str | None = None
    status: str | None = None


def decide(outcomes: Outcomes) -> Decision:
    """One decision for every input. Only an arm that passes with proof, while everything without it fails
    again, names a transport."""
    unsteady = _unsteady(outcomes)
    return next(
        decision
        for fits, decision in (
            (
                outcomes.control == "pass" and not unsteady,
                Decision("healthy", "the unchanged environment passes"),
            ),
            (
                outcomes.control == "lost",
                Decision("inconclusive", "the runbook's own process was killed while the ranks ran"),
            ),
            (
                outcomes.message and outcomes.control in FAILING,
                Decision(
                    "explained",
                    "the messages of the ranks, or how they ended, show the cause",
                    "" if unsteady else next(iter(cures(outcomes)), ""),
                ),
            ),
            (unsteady, Decision("inconclusive", unsteady)),
            (
                outcomes.clean == "pass",
                Decision(
                    "variable",
                    "it passes without the variables of your environment",
                    "clean",
                    "env-conflict",
                    "established" if outcomes.settled else "likely",
                ),
            ),
            (True, _by_arms(outcomes)),
        )
        if fits
    )


def _unsteady(outcomes: Outcomes) -> str:
    """Why nothing can be concluded from one run beside another: the same thing both passed and failed; "" if
    it did not."""
    passes = outcomes.control == "pass"
    once = {name: REMOVES[name] for name, word in outcomes.arms.items() if word == "passed 1 of 2"}
    # else it may be the way round that they share
    apart = len(once) > 1 and not frozenset.intersection(*once.values())
    same = [
        *(name for name, word in outcomes.arms.items() if word == "no effect"),
        *["clean, once of twice"] * (outcomes.clean == "once of twice"),
        *["the control again"] * (outcomes.after == "pass"),
    ]
    return next(
        why
        for fits, why in (
            (outcomes.control == "once of twice", "intermittent: the control failed and then passed"),
            (outcomes.control == "once of once", "the control failed and was not repeated"),
            (
                passes and outcomes.after == "fail",
                "the unchanged test passed before the variants and failed after them: seen 1 of 2",
            ),
            (
                passes and apart,
                f"the control passed, but {' and '.join(once)}, which share nothing, "
                "each failed 1 of 2 times",
            ),
            (same and not passes, f"intermittent, so no switch decides; these passed: {', '.join(same)}"),
            (True, ""),
        )
        if fits
    )


def cures(outcomes: Outcomes) -> list[str]:
    """Arms that pass with proof, those first that take away least."""
    return sorted(
        (name for name, word in outcomes.arms.items() if word == "pass"), key=lambda name: len(REMOVES[name])
    )


def suspects(outcomes: Outcomes) -> frozenset[str]:
    """What a single fault may sit in: all that passed took it away, nothing that failed did. An arm that
    takes away more than one that passed and fails nevertheless does so for a reason of its own: it leaves
    another way, such as sockets."""
    passed = [REMOVES[name] for name, word in outcomes.arms.items() if word == "pass" or word in UNSURE]
    failed = (REMOVES[name] for name, word in outcomes.arms.items() if word in FAILING)
    kept = frozenset().union(*(f for f in failed if not any(p <= f for p in passed)))
    return frozenset.intersection(*passed) - kept if passed else frozenset()


def _by_arms(outcomes: Outcomes) -> Decision:
    proven, unproven = cures(outcomes), [name for name, word in outcomes.arms.items() if word in UNSURE]
    arm, passed = next(iter(proven), ""), [*proven, *unproven]
    if arm and not suspects(outcomes) and any(POINTS_TO[name][0] != "sockets" for name in passed):
        return Decision("inconclusive", f"the results fit no single fault; these passed: {', '.join(passed)}")
    if arm:
        kind, cause = POINTS_TO[arm]
        narrower = any(REMOVES[name] < REMOVES[arm] for name in unproven)  # it passed: it may be that
        status = (
            "likely"
            if outcomes.connected and not narrower and kind not in ("algorithm", "protocol")
            else "possible"
        )
        why = f"{'no single transport: ' * (kind == 'sockets')}it passes with {arm} and fails without"
        return Decision(kind, why, arm, cause, cause and status)
    if unproven:
        return Decision(
            "inconclusive",
            "; ".join(f"{name} passed, and {UNSURE[outcomes.arms[name]]}" for name in unproven),
        )
    # what P2P and SHM off leaves in use
    untried = {"not run", "lost"} & {
        outcomes.clean,
        *map(outcomes.arms.get, ("IB off", "P2P, SHM and IB off", "interface pinned")),
    }
    if outcomes.arms.get("P2P and SHM off") in FAILING and not untried:
        return Decision(
            "not-the-transport",
            "it also fails over sockets alone and without the variables of your environment",
        )
    return Decision("inconclusive", "too few tests were run")
