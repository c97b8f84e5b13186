"""The GPUs, pair or part at fault, as narrow as the runs show it."""

import collections
import dataclasses

from nccl_runbook.causes.causes import NOT_SEEN
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.facts_world import World
from nccl_runbook.core.findings import NOTHING_KNOWN, Evidence, Finding, Remedy
from nccl_runbook.search.group_testing import Diagnosis, of_pairs
from nccl_runbook.search.outcomes import Group
from nccl_runbook.worlds.facts import Pairs

A_PART = "gpu-or-link-fault"


def gpus(group: tuple[int, ...] | list[int]) -> str:
    """ "GPU 2", "GPUs 0, 1"."""
    return f"GPU{'s' if len(group) > 1 else ''} {', '.join(map(str, group))}"


def culprits(diagnosed: Diagnosis) -> str:
    """ "at fault: GPU 2 with every partner, and the link between GPUs 0 and 1", or the sides of a split;
    empty if nothing is located."""
    if diagnosed.sides:
        return (
            f"{' and '.join(map(gpus, diagnosed.sides))} each work as a group, but no pair of GPUs "
            "across the two groups works"
        )
    bad = [
        *([f"{gpus(diagnosed.gpus)} with every partner"] if diagnosed.gpus else []),
        *(f"the link between GPUs {a} and {b}" for a, b in diagnosed.pairs),
    ]
    return f"at fault: {', and '.join(bad)}" if bad else ""


def look_at(diagnosed: Diagnosis, worlds: list[World]) -> Remedy:
    """A remedy for the administrator: the parts at fault, by UUID or bus id if the failing ``worlds`` report
    them."""
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
        "Other GPUs pass, so suspect a hardware part rather than a setting of the host. Please check "
        f"NVLink, slot and Xids of {named}.",
        ("nvidia-smi topo -m", "nvidia-smi nvlink -e", "sudo dmesg -T | grep -iE 'Xid|nvlink' | tail"),
    )


def with_pairs(fault: Finding, pairs: Pairs | Gap) -> Finding:
    """The finding of a control that fails, with the results of pairs of GPUs in the same environment."""
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
    where = (
        sure and culprits(diagnosed)
    ) or f"{len(failed)} of the tested pairs of GPUs fail without other GPUs"
    title = ""
    if passed and failed and steady:
        over = f" over {' and '.join(via)}" if via else ""
        title = f"; {where} ({len(passed)} other pairs pass{over})"
    elif failed and steady:
        title = "; any two of the tested GPUs are enough to fail"
    elif not failed and not untried:
        title = f"; the failure needs more than two GPUs ({len(passed)} pairs pass)"
    at_times = ", but not in every run (intermittent)" if not steady else ""
    words = [
        *(f"GPUs {p.first} and {p.second} alone: {p.trial.world.ended}{at_times}" for p in failed),
        *([f"{untried} of {pairs.wanted} pairs were not tested"] if untried else []),
    ]
    finding = dataclasses.replace(
        fault,
        title=fault.title + title,
        evidence=(
            *(Evidence(text, "table below") for text in words),
            *fault.evidence,
            *([NOT_SEEN] if NOT_SEEN not in fault.evidence else []),
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
    pairs = [tuple(d for d in world.request.devices if d is not None) for world in failed]
    around = Remedy(
        "you",
        f"Workaround until the hardware is repaired: run without {gpus(_without(pairs))}, because "
        "every other tested pair passes.",
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
