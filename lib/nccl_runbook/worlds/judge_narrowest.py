"""Where it is: what a search or a matrix of pairs says in words, and what a failing control of 04 becomes with it."""

from __future__ import annotations

import collections
import dataclasses

from nccl_runbook.causes.failures import NOT_SEEN
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import NOTHING_KNOWN, Evidence, Finding, Remedy
from nccl_runbook.core.world import World
from nccl_runbook.search.group_testing import Diagnosis, Group
from nccl_runbook.search.recorded import of_pairs
from nccl_runbook.worlds.facts import Pairs

A_PART = "gpu-or-link-fault"


def gpus(group: tuple[int, ...] | list[int]) -> str:
    return f"GPU{'s' if len(group) > 1 else ''} {', '.join(map(str, group))}"


def culprits(told: Diagnosis) -> str:
    """ "at fault: GPU 2 with every partner, and the link between GPUs 0 and 1", the sides of a split; "" where nothing is named."""
    bad = [f"{gpus(told.gpus)} with every partner"] if told.gpus else []
    bad += [f"the link between GPUs {a} and {b}" for a, b in told.pairs]
    across = f"{' and '.join(map(gpus, told.sides))} work by themselves, and nothing works across"
    return across if told.sides else f"at fault: {', and '.join(bad)}" if bad else ""


def look_at(told: Diagnosis, worlds: list[World]) -> Remedy:
    """For whoever has the machine: what is at fault, by what it is called outside CUDA as far as the failing ``worlds`` say so."""
    said = {gpu: rank.first("hello") or {} for w in worlds for gpu, rank in zip(w.request.devices, w.ranks, strict=False)}
    buses = {gpu: said.get(gpu, {}).get("pci_bus_id") for gpu in sorted({*told.gpus, *sum(told.pairs, ())})}
    named = " and ".join(f"GPU {gpu}{f' (PCI bus {bus})' if bus else ''}" for gpu, bus in buses.items())
    text = f"Others pass, so a part is likelier than a setting of the host. Please check NVLink, slot and Xids of {named}."
    return Remedy("the administrator", text, ("nvidia-smi topo -m", "nvidia-smi nvlink -e", "sudo dmesg -T | grep -iE 'Xid|nvlink' | head"))


def narrowed(fault: Finding, pairs: Pairs | Gap) -> Finding:
    """The finding of a control that fails, with what was seen of two GPUs at a time in the same environment."""
    if isinstance(pairs, Gap):
        return fault
    ran = [p for p in pairs.pairs if not any(w is not None and w.ended == "lost" for w in (p.trial.world, p.trial.again))]
    failed, passed = [[p for p in ran if p.trial.passed is fine] for fine in (False, True)]
    steady, untried = not any(p.trial.again is not None and p.trial.again.passed for p in failed), pairs.wanted - len(ran)
    told = of_pairs({g for p in ran for g in (p.first, p.second)}, [(p.first, p.second) for p in failed] if steady else [])
    named = "" if untried or any({p.first, p.second} & {*told.gpus} for p in passed) else culprits(told)  # another pair may say otherwise
    carried = [p.trial.world.transports for p in passed]
    via = sorted({name.partition("/")[0] for names in carried if not isinstance(names, Gap) for name in names})
    title = ""
    if passed and failed and steady:
        where = named or f"{len(failed)} of the pairs of GPUs that were tried fail alone"
        title = f"; {where} ({len(passed)} other pairs pass{' over ' * bool(via)}{' and '.join(via)})"
    elif failed and steady:
        title = "; two GPUs are enough, whichever were tried"
    elif not failed and not untried:
        title = f"; no two GPUs alone show it: it takes more of them ({len(passed)} pairs pass)"
    often = "" if steady else ", not every time: it comes and goes"
    words = [f"GPUs {p.first} and {p.second} alone: {p.trial.world.ended}{often}" for p in failed]
    words += [f"{untried} of {pairs.wanted} pairs were not tried"] if untried else []
    seen = (*(Evidence(text, "table below") for text in words), *fault.evidence, *([NOT_SEEN] * (NOT_SEEN not in fault.evidence)))
    found = dataclasses.replace(fault, title=fault.title + title, evidence=seen)
    return _of_a_part(found, told, [p.trial.world for p in failed], via) if passed and told.gpus + told.pairs else found


def _without(failed: list[Group]) -> list[int]:
    """GPUs without which no pair that failed is left: that of most of them first."""
    ends = collections.Counter(sum(failed, ()))
    worst = max(ends, key=lambda gpu: (ends[gpu], gpu), default=None)
    return [] if worst is None else sorted([worst, *_without([pair for pair in failed if worst not in pair])])


def _of_a_part(found: Finding, told: Diagnosis, failed: list[World], via: list[str]) -> Finding:
    """Other pairs that pass over P2P, too, clear the host's settings, unless a GPU has nothing but failing ones: it may sit behind
    another bridge. Of a cause that has nothing to do with P2P nothing is changed."""
    without = gpus(_without([tuple(w.request.devices) for w in failed]))
    around = Remedy("you", f"Until that is mended run without {without}: every other pair that was tried passes.")
    if found.cause is not None and (found.cause != "p2p-broken-acs-iommu" or via != ["P2P"]):
        return dataclasses.replace(found, remedy=(*found.remedy, around))
    kept = tuple(r for r in found.remedy if r != NOTHING_KNOWN and (told.gpus or r.who == "you"))
    return dataclasses.replace(found, cause=A_PART, status=found.status or "likely", remedy=(look_at(told, failed), around, *kept))
