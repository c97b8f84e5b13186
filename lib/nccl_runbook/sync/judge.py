"""Did every method bring every byte, which way to move the weights here, and what does the user's own
sync spend its seconds on?"""

import itertools
import re
from collections.abc import Sequence
from typing import Any

from nccl_runbook.causes.causes import causes, recognise, remedies, table
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.placement import Placement
from nccl_runbook.sync.facts import ALL_OF_THEM, METHODS, OwnSync, SyncArm, SyncRuns

# not on nccl-one-gpu, an experiment that most versions do not have; with buckets named, @64+512, the path
# ends in a digit
RESTS_ON = (
    "plan",
    "runs",
    *(f"runs.arms.{m}{buckets}" for m in METHODS if m != "nccl-one-gpu" for buckets in ("", "@*[0-9]")),
)

SLOWER = 2.0  # times; below that disk against NCCL is no news
FASTER = 1.5  # another method that is so much faster than the one the table names is told
HANG_S = 60.0  # an arm that finished no sync in that time is stuck, not slow
# GB/s in one direction of NVLink 3, 4 and 5: half of the vendor's figure, which adds both directions
NVLINK_GB_PER_S = {
    "A100": 300.0,
    "A800": 200.0,
    "H100": 450.0,
    "H200": 450.0,
    "H800": 200.0,
    "B200": 900.0,
    "B300": 900.0,
}
WIDEST_GB_PER_S = 900.0
HBM_GB_PER_S = 4000.0  # a copy inside one GPU reads and writes: half of HBM3e's 8 TB/s (B200)
PCIE_GB_PER_S = 126.0  # PCIe 6 x16 in one direction: what goes through the CPU cannot be faster


def judge(runs: SyncRuns | Gap, plan: Placement | Gap) -> list[Finding]:
    """One finding or more; none where nothing was run, which the Gap then says."""
    if isinstance(runs, Gap) or isinstance(plan, Gap):
        return []
    of_arms = (f for arm in runs.run for f in (of_one(arm, runs, plan), rate_above_link(arm, runs)))
    findings = [
        f
        for f in (
            *of_arms,
            choice(runs),
            disk_slower_than_nccl(runs),
            rehearsed_without_gpu(runs),
            bytes_verified(runs),
        )
        if f
    ]
    # the refusal of several NCCL methods is one finding
    first = {(f.id, f.title): f for f in reversed(findings)}
    return [f for f in findings if first[f.id, f.title] is f]


def of_one(arm: SyncArm, runs: SyncRuns, plan: Placement) -> Finding | None:
    """What is wrong with one method, by the first row that fits; None if nothing is."""
    known, over_nccl = recognise(_messages(arm)), arm.method.startswith("nccl")
    on_one_gpu = over_nccl and _shared(runs, plan)
    is_refused = over_nccl and known is not None and known[0].id == "duplicate-gpu"
    finding = next(
        finding
        for fits, finding in (
            (arm.wrong, wrong_bytes),
            (arm.complete, shared_gpu_not_refused if on_one_gpu else None),
            (arm.shortage, not_enough),
            (arm.stopped, interrupted),
            (is_refused, expected_refusal if on_one_gpu else refused_though_gpus_differ),
            (on_one_gpu and known is None, failed_on_one_gpu),
            (arm.timed_out, did_not_end),
            (True, failed),
        )
        if fits
    )
    return finding and finding(arm, runs, plan)


def _messages(arm: SyncArm) -> list[str]:
    """What the failed ranks raised and printed, line by line."""
    return [line for text in [*arm.errors.values(), *arm.last_lines] for line in text.splitlines()]


def _source(arm: SyncArm) -> str:
    return f"runs.arms.{arm.method}"


def wrong_bytes(arm: SyncArm, *_: Any) -> Finding:
    """Bytes differ after a sync that reported success: an engine would serve wrong weights without a word."""
    w = arm.wrong[0]
    return Finding(
        "weight-sync-wrong-bytes",
        Severity.BROKEN,
        f"{arm.method} delivered wrong bytes: {w['tensor']} on rank {w['rank']}, sync {w['repeat'] + 1}",
        (
            Evidence(
                f"{w['count']} tensors differ in that sync; {w['words']} 16-bit words of {w['tensor']}",
                _source(arm),
            ),
        ),
        (
            Remedy(
                "you",
                "Do not use this method until the cause is known. Repeat it to see whether it "
                "stays with one GPU or "
                "pair when repeated:",
                (arm.shell_line,),
            ),
        ),
    )


def not_enough(arm: SyncArm, *_: Any) -> Finding:
    """The method is not at fault for too little memory or space: it was not tested."""
    s = arm.shortage
    return Finding(
        "weight-sync-not-enough",
        Severity.UNKNOWN,
        f"{arm.method} was not measured: not enough {s.what}",
        (Evidence(f"{_gb(s.needed_bytes)} needed, {_gb(s.free_bytes)} free", _source(arm)),),
        (
            Remedy(
                "you",
                "Use the parameter directory to name a folder with enough space."
                if " in " in s.what
                else "Free memory, or choose a smaller model.",
            ),
        ),
    )


def _shared(runs: SyncRuns, plan: Placement) -> bool:
    """Whether two ranks sit on one GPU, by the plan or by the UUIDs that the ranks saw."""
    known = [u for u in runs.uuids if u]
    return bool(plan.shared) or len(set(known)) < len(known)


def expected_refusal(arm: SyncArm, runs: SyncRuns, plan: Placement) -> Finding:
    """NCCL refuses two ranks on one GPU, and there they sit."""
    cause = causes()["trainer-and-engine-share-gpu"]
    return Finding(
        cause.id,
        Severity.NOTE,
        f"{cause.title}, so NCCL refuses to connect them (expected here). "
        "The other methods need no second GPU",
        (
            Evidence(recognise(_messages(arm))[1], _source(arm)),
            Evidence(f"planned devices by rank: {plan.devices}; UUIDs seen: {', '.join(runs.uuids)}", "plan"),
        ),
        remedies(cause),
        cause.id,
        "established",
    )


def refused_though_gpus_differ(arm: SyncArm, runs: SyncRuns, _: Placement) -> Finding:
    """NCCL takes two GPUs for one: where their UUIDs differ, the bus ids must be equal (NCCL
    up to 2.30.4, gpu_identity.py)."""
    cause = causes()["bus-id-collision"]
    status = "likely" if all(runs.uuids) and len(set(runs.uuids)) == len(runs.uuids) else "possible"
    return Finding(
        "refused-though-gpus-differ",
        Severity.BROKEN,
        "NCCL reports that two ranks share a GPU, but they were placed on different GPUs",
        (
            Evidence(recognise(_messages(arm))[1], _source(arm)),
            Evidence(f"UUIDs: {', '.join(u or 'unknown' for u in runs.uuids)}", "runs.uuids"),
        ),
        remedies(cause, status),
        cause.id,
        status,
    )


def failed_on_one_gpu(arm: SyncArm, *_: Any) -> Finding:
    """NCCL between two ranks on one GPU is not made to work, so an end without its usual message (a peer's
    echo, a hang of the experimental mode) tells nothing about this machine either."""
    cause = causes()["trainer-and-engine-share-gpu"]
    return Finding(
        "failed-on-one-gpu",
        Severity.NOTE,
        f"{arm.method} did not work between two ranks on one GPU (expected), without NCCL's usual message",
        (
            Evidence([*_messages(arm), "no rank printed anything"][0], _source(arm)),
            Evidence("ranks: " + ", ".join(arm.ended), _source(arm)),
        ),
        remedies(cause),
        cause.id,
        "likely",
    )


def shared_gpu_not_refused(arm: SyncArm, _: SyncRuns, plan: Placement) -> Finding:
    return Finding(
        "shared-gpu-not-refused",
        Severity.NOTE,
        "NCCL connected two ranks on one GPU: an experimental mode of 2.30 and later",
        (Evidence(f"{arm.method} passed on devices {plan.devices}", _source(arm)),),
    )


def interrupted(arm: SyncArm, *_: Any) -> Finding:
    """Ended from outside: that says nothing of the method."""
    return Finding(
        "weight-sync-interrupted",
        Severity.UNKNOWN,
        f"{arm.method} was {arm.stopped}",
        (Evidence(f"{len(arm.syncs)} syncs finished in {arm.wall_s:.0f} s", _source(arm)),),
    )


def did_not_end(arm: SyncArm, *_: Any) -> Finding:
    """Stuck if not one sync was finished in a minute; otherwise only too slow for the budget."""
    evidence = (Evidence(f"{len(arm.syncs)} syncs finished in {arm.deadline_s:.0f} s", _source(arm)),)
    more_time = Remedy("you", "Give the step a larger budget_s.")
    if arm.passed and arm.variants:
        return Finding(
            "weight-sync-cut",
            Severity.NOTE,
            f"{arm.method} was measured; {arm.deadline_s:.0f} s were too short to measure it with busy "
            "engines or other buckets",
            evidence,
            (more_time,),
        )
    if arm.syncs or arm.deadline_s < HANG_S or "disk" in arm.method:
        return Finding(
            "weight-sync-too-slow",
            Severity.UNKNOWN,
            f"{arm.method} did not end within {arm.deadline_s:.0f} s",
            evidence,
            (more_time,),
        )
    return Finding(
        "weight-sync-hangs",
        Severity.BROKEN,
        f"{arm.method} hangs: no sync finished in {arm.deadline_s:.0f} s",
        evidence,
        (
            Remedy(
                "you",
                "Run 03-fewer-gpus and 04-transports first: they find the pair and the transport. By hand:",
                (arm.shell_line,),
            ),
        ),
    )


def failed(arm: SyncArm, *_: Any) -> Finding:
    """Any other end: with its cause where a rank's message is known, without one where it is not."""
    messages = _messages(arm)
    known = recognise(messages)
    cause = known[0] if known and known[0].id != "duplicate-gpu" else None
    return Finding(
        "weight-sync-failed",
        Severity.BROKEN,
        f"{arm.method} failed" + (f": {cause.title}" if cause else ""),
        (
            Evidence(
                known[1] if known else messages[0] if messages else "no rank printed anything", _source(arm)
            ),
            Evidence("ranks: " + ", ".join(arm.ended)),
        ),
        (
            *(remedies(cause) if cause else ()),
            Remedy(
                "you",
                "Repeat it by hand, and use 03-fewer-gpus to find a smaller run that fails.",
                (arm.shell_line,),
            ),
        ),
        cause and cause.id,
        cause and "likely",
    )


def rate_above_link(arm: SyncArm, runs: SyncRuns) -> Finding | None:
    """A rate that no link has comes from a timer around an asynchronous call, so the figure means nothing."""
    if not arm.syncs or not runs.size_bytes:
        return None
    seconds = min(s.seconds for s in arm.syncs)
    name = next((n for n in runs.gpu_names if n), "")
    nvlink = next((limit for key, limit in NVLINK_GB_PER_S.items() if key in name), WIDEST_GB_PER_S)
    here = HBM_GB_PER_S if len(set(runs.devices)) < len(runs.devices) else nvlink
    limit = (
        nvlink if arm.method.startswith("nccl") else here if arm.method.startswith("ipc") else PCIE_GB_PER_S
    )
    rate = runs.size_bytes / seconds / 1e9 if seconds else float("inf")
    return (
        None
        if rate <= limit
        else Finding(
            "rate-above-link",
            Severity.UNKNOWN,
            f"{arm.method}: {rate:.0f} GB/s is above any link here ({limit:.0f} GB/s), "
            "so the timing is wrong",
            (Evidence(f"{_gb(runs.size_bytes)} in {seconds:.4f} s", _source(arm)),),
        )
    )


def disk_slower_than_nccl(runs: SyncRuns) -> Finding | None:
    """The price of the fallback, as measured here."""
    disk, nccl = runs.fastest("disk"), runs.fastest("nccl")
    if (
        disk is None
        or nccl is None
        or not disk.steady_s
        or not nccl.steady_s
        or disk.steady_s < SLOWER * nccl.steady_s
    ):
        return None
    return Finding(
        "disk-slower-than-nccl",
        Severity.NOTE,
        f"a sync through disk takes {disk.steady_s / nccl.steady_s:.0f} times as long as {nccl.method} here",
        (
            Evidence(
                f"disk {disk.steady_s:.3f} s, {nccl.method} {nccl.steady_s:.4f} s for "
                f"{_gb(runs.size_bytes)} (steady syncs)",
                "runs.arms",
            ),
        ),
    )


def rehearsed_without_gpu(runs: SyncRuns) -> Finding | None:
    return (
        Finding(
            "rehearsed-without-gpu",
            Severity.UNKNOWN,
            "rehearsal on Gloo: no GPU here, so NCCL and copies to GPUs were not measured",
            (Evidence("the figures are for this CPU and its disk", "runs.devices"),),
        )
        if runs.on_cpu
        else None
    )


def bytes_verified(runs: SyncRuns) -> Finding | None:
    good = [a for a in runs.run if a.complete and a.passed]
    if not good:
        return None
    part = "" if runs.layers == runs.layers_of else f", only {runs.layers} of {runs.layers_of} layers"
    return Finding(
        "weight-sync-verified",
        Severity.OK,
        f"every byte arrived with {', '.join(a.method for a in good)} ({runs.tensors} tensors, "
        f"{_gb(runs.size_bytes)}{part})",
        (
            Evidence(
                f"{sum(a.compared for a in good)} comparisons of all tensors, with new bytes in each sync",
                "runs.arms",
            ),
        ),
    )


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.2f} MB"


# --- which way here: the decision table with what was measured; the user's own sync


def topology(runs: SyncRuns | Gap) -> str:
    """Key of the row that fits: by the UUIDs or devices of the ranks, by NCCL's refusal though all UUIDs
    differ, by what its own log says carried it; else ""."""
    if isinstance(runs, Gap) or runs.on_cpu:
        return ""
    known = [u for u in runs.uuids if u]
    if len(set(runs.devices)) < len(runs.devices) or len(set(known)) < len(known):
        return "one-gpu"
    nccl = [a for a in runs.run if a.method.startswith("nccl")]
    refusal = recognise(text for a in nccl for text in [*a.errors.values(), *a.last_lines])
    if refusal and refusal[0].id == "duplicate-gpu" and len(known) == len(runs.devices):
        return "bus-ids"
    carried = " ".join(name for a in nccl if isinstance(a.transports, dict) for name in a.transports)
    return "p2p" if "P2P" in carried else "shm" if "SHM" in carried else "sockets" if "NET" in carried else ""


def lines_for(method: str) -> list[tuple[str, tuple[str, ...]]]:
    """(framework and versions, its lines) for the way that ``method`` stands for: nccl, ipc, gloo or disk."""
    way = "disk" if "disk" in method else method.partition("-")[0]
    return [(row["name"], row[way]) for row in table("sync/choice")["framework"] if way in row]


def choice(runs: SyncRuns) -> Finding | None:
    """None on the CPU, whose figures say nothing of GPUs, and where nothing passed."""
    row = table("sync/choice")["topology"].get(topology(runs), {"order": ()})
    if not (
        fit := [
            a.method for m in row["order"] for a in runs.run if a.passed and a.method.partition("@")[0] == m
        ]
    ):
        return None
    seconds = {a.method: a.steady_s or 0.0 for a in runs.run if a.passed}
    quickest = min(seconds, key=lambda m: seconds[m])
    other = (
        f"; {quickest} was faster, {seconds[quickest]:.4f} s"
        if seconds[quickest] * FASTER < seconds[fit[0]]
        else ""
    )
    return Finding(
        "weight-sync-choice",
        Severity.NOTE,
        f"{row['title']}: {fit[0]}, {seconds[fit[0]]:.4f} s a sync of {runs.size_bytes / 1e9:.2f} GB "
        f"here{other}",
        tuple(
            Evidence(f"{m}: {s:.4f} s", f"runs.arms.{m}")
            for m, s in sorted(seconds.items(), key=lambda item: item[1])
        ),
        tuple(Remedy("you", f"{name}:", lines) for name, lines in lines_for(fit[0])),
    )


def own_sync(own: OwnSync | Gap) -> list[Finding]:
    """The longest phase of the longest sync, of all processes together where that is known, else of one:
    where the user's seconds go."""
    if isinstance(own, Gap) or not own.syncs:
        return [
            Finding(
                "own-sync-not-seen",
                Severity.UNKNOWN,
                own.detail if isinstance(own, Gap) else "your own sync was not recorded",
            )
        ]
    slowest = max(
        [s for s in own.syncs if s.who == ALL_OF_THEM] or own.syncs, key=lambda s: sum(s.phases.values())
    )
    whole, phase = sum(slowest.phases.values()), max(slowest.phases, key=lambda p: slowest.phases[p])
    return [
        Finding(
            "own-sync-phases",
            Severity.NOTE,
            f"your own sync took {whole:.3f} s on {slowest.who}, {slowest.phases[phase]:.3f} s of it "
            f"in {phase}",
            (Evidence(", ".join(f"{p} {s:.3f} s" for p, s in slowest.phases.items()), slowest.source),),
            (
                Remedy(
                    "you",
                    table("sync/choice")["own"]["advice"].get(
                        phase, "Check what your code does in that phase."
                    ),
                ),
            ),
        )
    ]


def phase_of(frames: Sequence[str]) -> str:
    """The phase of a weight sync that a stack shows. ``frames``: "function file", innermost first, with or
    without the class; "" where none of them syncs weights."""
    # without class or <locals>
    own, named = table("sync/choice")["own"], [re.sub(r"^[^ ]*\.", "", frame) for frame in frames]
    roots = [number for number, frame in enumerate(named) if re.match(own["sync"], frame)]
    inside = named[: roots[-1] + 1] if roots else []
    whole = (phase for phase, names in own["phases"].items() if any(re.search(names, f) for f in inside))
    leaf = (phase for f in inside for phase, names in own["innermost"].items() if re.search(names, f))
    return next(itertools.chain(whole, leaf), "other") if inside else ""
