"""Where it is: what a search or a matrix of pairs says in words, who mends it, and what a failing control of 04 becomes with it."""

from __future__ import annotations

import dataclasses

from nccl_runbook.facts import Gap
from nccl_runbook.facts.experiments import Pair, Pairs
from nccl_runbook.facts.world import World
from nccl_runbook.findings import NOTHING_KNOWN, Evidence, Finding, Remedy, Severity
from nccl_runbook.planning.group_testing import Diagnosis
from nccl_runbook.planning.recorded import of_pairs
from nccl_runbook.rules.failures import NOT_SEEN

TABLE = "table below"


def gpus(group: tuple[int, ...] | list[int]) -> str:
    return f"GPU{'s' if len(group) > 1 else ''} {', '.join(map(str, group))}"


def culprits(told: Diagnosis) -> str:
    """ "GPU 2 with every partner, and the link between GPUs 0 and 1"; "" where neither is named."""
    bad = [f"{gpus(told.gpus)} with every partner"] if told.gpus else []
    return ", and ".join([*bad, *(f"the link between GPUs {a} and {b}" for a, b in told.pairs)])


def split(told: Diagnosis) -> str:
    return f"{' and '.join(map(gpus, told.sides))} work by themselves, and nothing works across"


def look_at(world: World) -> Remedy:
    """For whoever has the machine: the parts between the GPUs of ``world``, by what they are called outside CUDA."""
    said = [(rank.first("hello") or {}).get("pci_bus_id") for rank in world.ranks]
    named = " and ".join(f"GPU {gpu} (PCI bus {bus})" for gpu, bus in zip(world.request.devices, said, strict=False) if bus)
    text = f"Other pairs pass, so a part is likelier than a setting of the host. Please check NVLink, slot and Xids of {named or 'these GPUs'}."
    return Remedy("the administrator", text, ("nvidia-smi topo -m", "nvidia-smi nvlink -e", "sudo dmesg -T | grep -iE 'Xid|nvlink' | head -50"))


def narrowed(fault: Finding, pairs: Pairs | Gap) -> Finding:
    """The finding of a control that fails, with what was seen of two GPUs at a time in the same environment."""
    if isinstance(pairs, Gap) or not pairs.pairs:
        return fault
    failed = [p for p in pairs.pairs if not p.trial.passed]
    passed = [p for p in pairs.pairs if p.trial.passed]
    unsteady = [p for p in failed if p.trial.again is not None and p.trial.again.passed]
    untried = pairs.wanted - len(pairs.pairs)
    seen = [Evidence(f"GPUs {p.first} and {p.second} alone: {p.trial.world.ended}", TABLE) for p in failed]
    if unsteady:
        return _more(fault, "", [*seen, Evidence("one of these passed when repeated at once: which pair it is comes and goes", TABLE)])
    if failed and not passed:
        return _more(fault, "; two GPUs are enough, whichever were tried", seen)
    if untried:
        seen.append(Evidence(f"{untried} of {pairs.wanted} pairs were not tried, as the budget ended: raise budget_s", TABLE))
    if not failed:
        title = f"; no two GPUs alone show it: it takes more of them ({len(passed)} pairs pass)"
        return _more(fault, title * (not untried), seen or [Evidence(f"all {len(passed)} pairs pass by themselves", TABLE)])
    return _at_a_pair(fault, pairs, failed, passed, seen)


def _more(fault: Finding, title: str, seen: list[Evidence]) -> Finding:
    return dataclasses.replace(fault, title=fault.title + title, evidence=(*seen, *fault.evidence))


def _at_a_pair(fault: Finding, pairs: Pairs, failed: list[Pair], passed: list[Pair], seen: list[Evidence]) -> Finding:
    """Some pairs fail and others pass: the GPU, the links or the split; another pair that passes over P2P clears the host's settings."""
    told = of_pairs({g for p in pairs.pairs for g in (p.first, p.second)}, [(p.first, p.second) for p in failed])
    via = {name.partition("/")[0] for p in passed if not isinstance(p.trial.world.transports, Gap) for name in p.trial.world.transports}
    over = f" over {', '.join(sorted(via))}" if via else ""
    where = culprits(told) or (split(told) if told.sides else f"{len(failed)} pairs of GPUs")
    title = f": {where}; {'the other pair passes' if len(passed) == 1 else f'the other {len(passed)} pairs pass'}{over}"
    found = _more(fault, title, [*seen, NOT_SEEN])
    around = _around(pairs)
    is_a_part = bool(culprits(told)) and (fault.cause is None or fault.cause == "p2p-broken-acs-iommu" and via == {"P2P"})
    if not is_a_part:
        return dataclasses.replace(found, remedy=(*around, *found.remedy))
    rest = tuple(r for r in found.remedy if r != NOTHING_KNOWN and r.who == "you")
    remedy = (look_at(failed[0].trial.world), *around, *rest)
    return dataclasses.replace(found, cause="gpu-or-link-fault", status=fault.status or "likely", remedy=remedy)


def _around(pairs: Pairs) -> tuple[Remedy, ...]:
    """What still works at full speed: the rest without one GPU of each failing pair, if that was seen to pass."""
    if pairs.rest is None or not pairs.rest.passed:
        return ()
    left = [d for d in pairs.rest.world.request.devices if d is not None]
    out = sorted({g for p in pairs.pairs for g in (p.first, p.second)} - set(left))
    visible = (pairs.rest.world.ranks[0].first("hello") or {}).get("visible")
    lines = (f"export CUDA_VISIBLE_DEVICES={visible}",) if visible else ()
    return (Remedy("you", f"Until that is mended leave {gpus(out)} out: {gpus(left)} passed together in your environment as it is.", lines),)
