"""Did every method bring every byte, which way to move the weights here, and what does the user's own
sync spend its seconds on?"""

import itertools
import re
from collections.abc import Sequence

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.messages.printed.recognise import SHARED_GPU
from nccl_runbook.placement import Placement
from nccl_runbook.sync.delta.facts import DELTA, alike
from nccl_runbook.sync.facts import ALL_OF_THEM, OwnSync, SyncArm, SyncRuns
from nccl_runbook.sync.judge_failures import _source, gb, of_one, recognised
from nccl_runbook.sync.methods import METHODS
from nccl_runbook.sync.reshard.facts import resharded
from nccl_runbook.sync.reshard.judge import against_control

# not on nccl-one-gpu, an experiment that most versions do not have; with buckets named, @64+512, the path
# ends in a digit
RESTS_ON = (
    "plan",
    "runs",
    *(f"runs.arms.{m}{buckets}" for m in METHODS if m != "nccl-one-gpu" for buckets in ("", "@*[0-9]")),
)

SLOWER = 2.0  # times; below that disk against NCCL is no news
FASTER = 1.5  # a method faster than the table's by this factor is reported


def judge(runs: SyncRuns | Gap, plan: Placement | Gap) -> list[Finding]:
    """Findings of the measured methods; empty for a Gap."""
    if isinstance(runs, Gap) or isinstance(plan, Gap):
        return []
    of_arms = (f for arm in runs.run for f in (of_one(arm, runs, plan), rate_above_link(arm, runs)))
    findings = [
        f
        for f in (
            *of_arms,
            *against_control(runs),
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


def rate_above_link(arm: SyncArm, runs: SyncRuns) -> Finding | None:
    """A rate above that of any link means that the timer surrounds an asynchronous call; None otherwise."""
    if not arm.syncs or not runs.size_bytes or arm.method.startswith(DELTA):
        return None
    seconds = min(s.seconds for s in arm.syncs)
    name = next((n for n in runs.gpu_names if n), "")
    limits = table("sync/choice")["limits"]
    nvlink = next((limit for key, limit in limits["nvlink"].items() if key in name), limits["widest_nvlink"])
    here = limits["gpu_memory"] if len(set(runs.devices)) < len(runs.devices) else nvlink
    if resharded(arm.method):
        limit = limits["gpu_memory"] * len(runs.devices)  # each rank copies or moves its part
    elif arm.method.startswith("nccl"):
        limit = nvlink
    else:
        limit = here if arm.method.startswith("ipc") else limits["pcie"]
    rate = runs.size_bytes / seconds / 1e9 if seconds else float("inf")
    return (
        None
        if rate <= limit
        else Finding(
            "rate-above-link",
            Severity.UNKNOWN,
            f"{arm.method}: {rate:.0f} GB/s is faster than every link of this machine ({limit:.0f} "
            "GB/s), so the measured time is wrong",
            (Evidence(f"{gb(runs.size_bytes)} in {seconds:.4f} s", _source(arm)),),
        )
    )


def disk_slower_than_nccl(runs: SyncRuns) -> Finding | None:
    """How much slower the disk is than NCCL, as measured; None if less than SLOWER times, or one did not
    pass."""
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
        f"on this machine, a sync through disk takes {disk.steady_s / nccl.steady_s:.0f} times as long "
        f"as {nccl.method}",
        (
            Evidence(
                f"disk {disk.steady_s:.3f} s, {nccl.method} {nccl.steady_s:.4f} s for "
                f"{gb(runs.size_bytes)} (syncs after the first)",
                "runs.arms",
            ),
        ),
    )


def rehearsed_without_gpu(runs: SyncRuns) -> Finding | None:
    """Without a GPU the figures say nothing about NCCL; None if there was one."""
    return (
        Finding(
            "rehearsed-without-gpu",
            Severity.UNKNOWN,
            "this was a rehearsal on Gloo without a GPU, so NCCL and copies to GPUs were not measured",
            (Evidence("the figures are valid only for this CPU and its disk", "runs.devices"),),
        )
        if runs.on_cpu
        else None
    )


def bytes_verified(runs: SyncRuns) -> Finding | None:
    """Methods whose every byte arrived right; None if there is none."""
    good = [a for a in runs.run if a.complete and a.passed]
    if not good:
        return None
    part = "" if runs.layers == runs.layers_of else f", only {runs.layers} of {runs.layers_of} layers"
    return Finding(
        "weight-sync-verified",
        Severity.OK,
        f"every byte arrived with {', '.join(a.method for a in good)} ({runs.tensors} tensors, "
        f"{gb(runs.size_bytes)}{part})",
        (
            Evidence(
                f"all tensors were compared {sum(a.compared for a in good)} times, with new bytes in "
                "each sync",
                "runs.arms",
            ),
        ),
    )


# --- which way here: the decision table with what was measured; the user's own sync


def topology(runs: SyncRuns | Gap) -> str:
    """Key of the row that applies: by UUIDs or devices of the ranks, by NCCL's refusal although UUIDs
    differ, or by the transport in its log; else empty."""
    if isinstance(runs, Gap) or runs.on_cpu:
        return ""
    known = [u for u in runs.uuids if u]
    if len(set(runs.devices)) < len(runs.devices) or len(set(known)) < len(known):
        return "one-gpu"
    nccl = [a for a in runs.run if a.method.startswith("nccl")]
    refused = any(message and message.message == SHARED_GPU for message in map(recognised, nccl))
    if refused and len(known) == len(runs.devices):
        return "bus-ids"
    carried = " ".join(name for a in nccl if isinstance(a.transports, dict) for name in a.transports)
    return next(
        (way for name, way in {"P2P": "p2p", "SHM": "shm", "NET": "sockets"}.items() if name in carried), ""
    )


def lines_for(method: str) -> list[tuple[str, tuple[str, ...]]]:
    """(framework and versions, lines to set) for the kind of ``method``: nccl, ipc, gloo or disk."""
    way = "disk" if "disk" in method else method.partition("-")[0]
    return [(row["name"], row[way]) for row in table("sync/choice")["framework"] if way in row]


def choice(runs: SyncRuns) -> Finding | None:
    """The finding that names the method to use; None on the CPU, whose figures say nothing about GPUs, and
    if nothing passed."""
    row = table("sync/choice")["topology"].get(topology(runs), {})
    fit = [
        a.method
        for m in row.get("prefer", ())
        for a in runs.run
        if a.passed and a.method.partition("@")[0] == m
    ]
    if not fit:
        return None
    seconds = {a.method: a.steady_s or 0.0 for a in runs.run if a.passed and alike(a.method)}
    quickest = min(seconds, key=lambda m: seconds[m])
    other = (
        f"; {quickest} was faster, {seconds[quickest]:.4f} s"
        if seconds[quickest] * FASTER < seconds[fit[0]]
        else ""
    )
    return Finding(
        "weight-sync-choice",
        Severity.NOTE,
        f"{row['title']}: {fit[0]}, {seconds[fit[0]]:.4f} s for a sync of {runs.size_bytes / 1e9:.2f} "
        f"GB on this machine{other}",
        tuple(
            Evidence(f"{m}: {s:.4f} s", f"runs.arms.{m}")
            for m, s in sorted(seconds.items(), key=lambda item: item[1])
        ),
        tuple(Remedy("you", f"{name}:", lines) for name, lines in lines_for(fit[0])),
    )


def own_sync(own: OwnSync | Gap) -> list[Finding]:
    """Where the seconds of the longest sync go: its longest phase, over all processes if they can be joined,
    else of one."""
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
            f"your own sync took {whole:.3f} s on {slowest.who}, {slowest.phases[phase]:.3f} s of this "
            f"time in {phase}",
            (Evidence(", ".join(f"{p} {s:.3f} s" for p, s in slowest.phases.items()), slowest.source),),
            (
                Remedy(
                    "you",
                    table("sync/choice")["own"]["advice"].get(
                        phase, "Check what your code does in the slowest phase."
                    ),
                ),
            ),
        )
    ]


def phase_of(frames: Sequence[str]) -> str:
    """The phase of a weight sync that a stack shows. ``frames``: "function file", innermost first, with or
    without the class; empty if no frame belongs to a sync."""
    # without class or <locals>
    own, named = table("sync/choice")["own"], [re.sub(r"^[^ ]*\.", "", frame) for frame in frames]
    roots = [number for number, frame in enumerate(named) if re.match(own["sync"], frame)]
    inside = named[: roots[-1] + 1] if roots else []
    whole = (phase for phase, names in own["phases"].items() if any(re.search(names, f) for f in inside))
    leaf = (phase for f in inside for phase, names in own["innermost"].items() if re.search(names, f))
    return next(itertools.chain(whole, leaf), "other") if inside else ""
