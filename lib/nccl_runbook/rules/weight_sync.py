"""Did every method bring every byte, and what does the choice of method cost here?"""
from __future__ import annotations

import re

from nccl_runbook.facts import Gap
from nccl_runbook.facts.sync import SyncArm, SyncRuns
from nccl_runbook.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.planning.placement import Placement

RESTS_ON = ("plan", "runs", "runs.arms.*")

# NCCL's words when two ranks of a communicator sit on one GPU: to 2.29, 2.30.4, 2.30.7
REFUSAL = re.compile(r"Duplicate GPU detected|Multiple [Rr]anks (?:detected|are) using the same GPU")
SLOWER = 2.0              # times; below that disk against NCCL is no news
HANG_S = 60.0             # an arm that finished no sync in that time is stuck, not slow
# GB/s that one direction of the widest link of a GPU carries: NVLink 3, 4, 5 (vendor's figures, both directions halved)
NVLINK_GB_PER_S = {"A100": 300.0, "A800": 200.0, "H100": 450.0, "H200": 450.0, "H800": 200.0, "B200": 900.0, "B300": 900.0}
WIDEST_GB_PER_S = 900.0
PCIE_GB_PER_S = 126.0     # PCIe 6 x16, one direction: what goes through the CPU cannot be faster


def judge(runs: SyncRuns | Gap, plan: Placement | Gap) -> list[Finding]:
    """One finding or more; none where nothing was run, which the Gap then says."""
    if isinstance(runs, Gap) or isinstance(plan, Gap):
        return []
    found = [f for arm in runs.run for f in (_arm(arm, runs, plan), rate_above_link(arm, runs)) if f]
    found += [f for f in (disk_slower_than_nccl(runs), rehearsed_without_gpu(runs), bytes_verified(runs)) if f]
    return _once(found)


def _once(findings: list[Finding]) -> list[Finding]:
    """The refusal of several NCCL methods is one finding."""
    seen: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        seen.setdefault((finding.id, finding.title), finding)
    return list(seen.values())


def _arm(arm: SyncArm, runs: SyncRuns, plan: Placement) -> Finding | None:
    """What is wrong with one method; None if nothing is."""
    if arm.complete and not arm.wrong:
        return shared_gpu_not_refused(arm, plan)
    return wrong_bytes(arm) or not_enough(arm, runs) or refused(arm, runs, plan) or did_not_end(arm) or failed(arm)


def _said(arm: SyncArm) -> list[str]:
    return [*(f"[rank{rank}] {text}" for rank, text in arm.errors.items()), *arm.last_lines]


def _source(arm: SyncArm) -> str:
    return f"runs.arms.{arm.method}"


def wrong_bytes(arm: SyncArm) -> Finding | None:
    """Bytes differ after a sync that reported success: an engine would serve wrong weights without a word."""
    if not arm.wrong:
        return None
    w = arm.wrong[0]
    title = f"{arm.method} delivered wrong bytes: {w['tensor']} on rank {w['rank']}, sync {w['repeat'] + 1}"
    text = f"{w['count']} tensors differ in that sync; {w['words']} 16-bit words of {w['tensor']}"
    return Finding("weight-sync-wrong-bytes", Severity.BROKEN, title, (Evidence(text, _source(arm)),), (
        Remedy("you", "Do not sync weights this way until it is explained; see whether it stays with one GPU or pair, and repeat it by hand.",
               (arm.shell_line,)),))


def not_enough(arm: SyncArm, runs: SyncRuns) -> Finding | None:
    """Too little memory or space is no fault of the method: it was not tested."""
    if arm.shortage is None:
        return None
    s = arm.shortage
    advice = "Name a directory with room by the parameter directory." if arm.method == "disk" else "Free memory, or choose a smaller model."
    return Finding("weight-sync-not-enough", Severity.UNKNOWN, f"{arm.method} was not measured: not enough {s.what}",
                   (Evidence(f"{_gb(s.needed_bytes)} needed, {_gb(s.free_bytes)} free", _source(arm)),), (Remedy("you", advice),))


def refused(arm: SyncArm, runs: SyncRuns, plan: Placement) -> Finding | None:
    """NCCL refuses two ranks on one GPU. Expected where the plan puts them there; where UUIDs differ, bus ids collide."""
    line = next((text for text in _said(arm) for text in text.splitlines() if REFUSAL.search(text)), None)
    if line is None or not arm.method.startswith("nccl"):
        return None
    evidence = (Evidence(line.strip(), _source(arm)),)
    if plan.shared or _same_uuid(runs):
        ranks = " and ".join(map(str, plan.shared[0])) if plan.shared else "two of them"
        title = "trainer and engine share one GPU, so NCCL refuses to connect them (expected); the other methods need no second GPU"
        return Finding("trainer-and-engine-share-gpu", Severity.NOTE, title, (*evidence, Evidence(f"ranks {ranks} sit on one GPU", "plan")),
                       ONE_GPU_REMEDIES, "trainer-and-engine-share-gpu", "established")
    return Finding("refused-though-gpus-differ", Severity.BROKEN, "NCCL says that two ranks share a GPU, and they do not", (
        *evidence, Evidence(f"UUIDs: {', '.join(u or 'unknown' for u in runs.uuids)}", "runs.uuids")), (
        Remedy("you", "NCCL to 2.29 compares PCI bus ids; from 2.30 on it compares UUIDs. Upgrade NCCL, and use Gloo or disk until then."),),
        "bus-id-collision", "likely" if len({*runs.uuids}) == len(runs.uuids) else "possible")


def _same_uuid(runs: SyncRuns) -> bool:
    known = [u for u in runs.uuids if u]
    return len(set(known)) < len(known)


ONE_GPU_REMEDIES = (
    Remedy("you", "Sync through disk, or a folder in /dev/shm. AReaL from v0.5.0 on reads this option; up to v0.4.1 its examples do not, and the "
           "training script itself must call WeightUpdateMeta.from_disk.", ("actor.weight_update_mode=disk",)),
    Remedy("your launcher", "Give trainer and engine different GPUs (two or more), if there are any."),
    Remedy("you", "Use a colocated mode that hands over CUDA IPC handles instead of a broadcast, where the framework has one (verl, slime, OpenRLHF)."),
    Remedy("you", "NCCL 2.30 or later allows it experimentally; it may hang, so bound the wait.", ("export NCCL_MULTI_RANK_GPU_ENABLE=1",)),
)


def shared_gpu_not_refused(arm: SyncArm, plan: Placement) -> Finding | None:
    if not (plan.shared and arm.method.startswith("nccl")):
        return None
    return Finding("shared-gpu-not-refused", Severity.NOTE, "NCCL connected two ranks on one GPU: an experimental mode of 2.30 and later",
                   (Evidence(f"{arm.method} passed with ranks {plan.shared[0]} on one GPU", _source(arm)),))


def did_not_end(arm: SyncArm) -> Finding | None:
    """Stuck if not one sync was finished in a minute; otherwise only too slow for the budget."""
    if not arm.timed_out:
        return None
    evidence = (Evidence(f"{len(arm.syncs)} syncs were finished in {arm.deadline_s:.0f} s", _source(arm)),)
    if arm.syncs or arm.deadline_s < HANG_S or arm.method == "disk":
        return Finding("weight-sync-too-slow", Severity.UNKNOWN, f"{arm.method} did not end within {arm.deadline_s:.0f} s", evidence,
                       (Remedy("you", "Give the step a larger budget_s."),))
    return Finding("weight-sync-hangs", Severity.BROKEN, f"{arm.method} hangs: no sync was finished in {arm.deadline_s:.0f} s", evidence,
                   (Remedy("you", "Look at 03-fewer-gpus and 04-transports first: they say which pair and which transport. By hand:", (arm.shell_line,)),))


def failed(arm: SyncArm) -> Finding:
    said = _said(arm)
    first = said[0].splitlines()[0] if said else "; ".join(arm.ended)
    return Finding("weight-sync-failed", Severity.BROKEN, f"{arm.method} failed", (Evidence(first, _source(arm)), Evidence("ranks: " + ", ".join(arm.ended))),
                   (Remedy("you", "Repeat it by hand, and look at 03-fewer-gpus for a smaller world that fails too.", (arm.shell_line,)),))


def rate_above_link(arm: SyncArm, runs: SyncRuns) -> Finding | None:
    """A rate that no link has comes from a timer around an asynchronous call, so the figure tells nothing."""
    if not arm.syncs or not runs.size_bytes:
        return None
    rate = runs.size_bytes / min(s.seconds for s in arm.syncs) / 1e9
    name = next((n for n in runs.gpu_names if n), "")
    nvlink = next((limit for key, limit in NVLINK_GB_PER_S.items() if key in name), WIDEST_GB_PER_S)
    limit = nvlink if arm.method.startswith("nccl") else PCIE_GB_PER_S
    if rate <= limit:
        return None
    return Finding("rate-above-link", Severity.UNKNOWN, f"{arm.method}: {rate:.0f} GB/s is above any link ({limit:.0f} GB/s), so the timing is wrong",
                   (Evidence(f"{_gb(runs.size_bytes)} in {min(s.seconds for s in arm.syncs):.4f} s", _source(arm)),))


def disk_slower_than_nccl(runs: SyncRuns) -> Finding | None:
    """The price of the fallback, as measured here."""
    disk, nccl = runs.fastest("disk"), runs.fastest("nccl")
    if disk is None or nccl is None or not disk.steady_s or not nccl.steady_s or disk.steady_s < SLOWER * nccl.steady_s:
        return None
    ratio = disk.steady_s / nccl.steady_s
    return Finding("disk-slower-than-nccl", Severity.NOTE, f"a sync through disk takes {ratio:.0f} times as long as {nccl.method} here", (
        Evidence(f"disk {disk.steady_s:.3f} s, {nccl.method} {nccl.steady_s:.4f} s for {_gb(runs.size_bytes)} (steady syncs)", "runs.arms"),))


def rehearsed_without_gpu(runs: SyncRuns) -> Finding | None:
    if not runs.on_cpu:
        return None
    return Finding("rehearsed-without-gpu", Severity.UNKNOWN, "rehearsed on Gloo: no GPU here, so NCCL and copies to GPUs were not measured",
                   (Evidence("the figures are those of this CPU and its disk", "runs.devices"),))


def bytes_verified(runs: SyncRuns) -> Finding | None:
    good = [a for a in runs.run if a.complete and not a.wrong and a.compared]
    if not good:
        return None
    what = f"{runs.tensors} tensors, {_gb(runs.size_bytes)}" + ("" if runs.layers == runs.layers_of else f", {runs.layers} of {runs.layers_of} layers")
    return Finding("weight-sync-verified", Severity.OK, f"every byte arrived with {', '.join(a.method for a in good)} ({what})",
                   (Evidence(f"{sum(a.compared for a in good)} comparisons of all tensors, new bytes at each sync", "runs.arms"),))


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.2f} MB"
