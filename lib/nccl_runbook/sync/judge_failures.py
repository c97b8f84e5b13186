"""What went wrong with one method of weight sync: refused, failed, interrupted or wrong bytes."""

from typing import Any

from nccl_runbook.causes.causes import causes, remedies
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.messages.judge import Indication
from nccl_runbook.messages.printed.recognise import SHARED_GPU, own_words, recognise
from nccl_runbook.placement import Placement
from nccl_runbook.sync.facts import SyncArm, SyncRuns

HANG_S = 60.0  # an arm that finished no sync in that time is stuck, not slow


def of_one(arm: SyncArm, runs: SyncRuns, plan: Placement) -> Finding | None:
    """What is wrong with one method; None if nothing is."""
    if arm.wrong:
        return wrong_bytes(arm)
    on_one_gpu = arm.method.startswith("nccl") and _shared(runs, plan)
    if arm.complete:
        return shared_gpu_not_refused(arm, runs, plan) if on_one_gpu else None
    if arm.shortage:
        return not_enough(arm)
    if arm.stopped:
        return interrupted(arm)
    known = recognised(arm)
    is_refused = arm.method.startswith("nccl") and known is not None and known.message == SHARED_GPU
    # NCCL's refusal itself is only possible: it does not say whether the ranks or their GPUs are the reason
    has_reason = known is not None and known.status != "possible"
    if on_one_gpu and not has_reason:
        return refused_on_one_gpu(arm, runs, plan)
    if is_refused:
        return refused_though_gpus_differ(arm, runs, plan)
    if arm.timed_out and not arm.broke:
        return did_not_end(arm)
    return failed(arm)


def recognised(arm: SyncArm) -> Indication | None:
    """The surest message of what the failed ranks raised and printed; None if the catalogue knows none."""
    return recognise({arm.method: "\n".join([*arm.errors.values(), *arm.last_lines])})


def _shown(arm: SyncArm) -> str:
    """The message of the catalogue, else the first line that a failed rank raised or printed."""
    message = recognised(arm)
    lines = (line for text in [*arm.errors.values(), *arm.last_lines] for line in text.splitlines())
    return message.evidence[0].text if message else next(lines, "no rank printed anything")


def _source(arm: SyncArm) -> str:
    return f"runs.arms.{arm.method}"


def wrong_bytes(arm: SyncArm, *_: Any) -> Finding:
    """Bytes differ after a sync that reported success: an engine would silently serve wrong weights."""
    w = arm.wrong[0]
    return Finding(
        "weight-sync-wrong-bytes",
        Severity.BROKEN,
        f"{arm.method} delivered wrong bytes: {w['tensor']} on rank {w['rank']}, sync {w['repeat'] + 1}",
        (
            Evidence(
                f"{w['words']} 16-bit words of {w['tensor']} differ; tensors that differ in this sync: "
                f"{w['count']}",
                _source(arm),
            ),
        ),
        (
            Remedy(
                "you",
                "Do not use this sync method until the cause is known. Repeat the sync to see whether "
                "the same GPU or pair of GPUs is at fault again:",
                (arm.shell_line,),
            ),
        ),
    )


def not_enough(arm: SyncArm, *_: Any) -> Finding:
    """Too little memory or space: the method was not tested."""
    s = arm.shortage
    return Finding(
        "weight-sync-not-enough",
        Severity.UNKNOWN,
        f"{arm.method} was not measured: not enough {s.what}",
        (Evidence(f"{gb(s.needed_bytes)} needed, {gb(s.free_bytes)} free", _source(arm)),),
        (
            Remedy(
                "you",
                "Name a folder with enough space in the parameter `directory`."
                if " in " in s.what
                else "Free memory, or choose a smaller model.",
            ),
        ),
    )


def _shared(runs: SyncRuns, plan: Placement) -> bool:
    """Whether two ranks sit on one GPU, by the plan or by the UUIDs that the ranks saw."""
    known = [u for u in runs.uuids if u]
    return bool(plan.shared) or len(set(known)) < len(known)


def refused_on_one_gpu(arm: SyncArm, runs: SyncRuns, plan: Placement) -> Finding:
    """NCCL does not support two ranks on one GPU. Its refusal is expected, and a failure without its usual
    message (a peer's echo, a hang of the experimental mode) says nothing about this machine."""
    cause, message = causes()["trainer-and-engine-share-gpu"], recognised(arm)
    is_refusal = message is not None and message.message == SHARED_GPU
    return Finding(
        cause.id if is_refusal else "failed-on-one-gpu",
        Severity.NOTE,
        (
            f"{cause.title}, so NCCL refuses to connect their ranks, as expected. Other methods need no "
            "second GPU"
        )
        if is_refusal
        else (
            f"{arm.method} did not work between two ranks on one GPU, as expected, because NCCL "
            "refuses such ranks"
        ),
        (
            Evidence(_shown(arm), _source(arm)),
            Evidence(f"planned devices by rank: {plan.devices}; UUIDs seen: {', '.join(runs.uuids)}", "plan"),
            Evidence("ranks: " + ", ".join(arm.ended), _source(arm)),
        ),
        remedies(cause),
        cause=cause.id,
        status="established" if is_refusal else "likely",
    )


def refused_though_gpus_differ(arm: SyncArm, runs: SyncRuns, _: Placement) -> Finding:
    """NCCL takes two GPUs for one: if the UUIDs differ, the bus ids must be equal (NCCL up to 2.30.4,
    gpu_identity.py)."""
    cause = causes()["bus-id-collision"]
    status = "likely" if all(runs.uuids) and len(set(runs.uuids)) == len(runs.uuids) else "possible"
    return Finding(
        "refused-though-gpus-differ",
        Severity.BROKEN,
        "NCCL reports that two ranks share a GPU, although the plan gave these ranks different GPUs",
        (
            Evidence(_shown(arm), _source(arm)),
            Evidence(f"UUIDs: {', '.join(u or 'unknown' for u in runs.uuids)}", "runs.uuids"),
        ),
        remedies(cause, status),
        cause=cause.id,
        status=status,
    )


def shared_gpu_not_refused(arm: SyncArm, _: SyncRuns, plan: Placement) -> Finding:
    """NCCL connected two ranks on one GPU, which it usually refuses."""
    return Finding(
        "shared-gpu-not-refused",
        Severity.NOTE,
        "NCCL connected two ranks on one GPU, which is an experimental mode of NCCL 2.30 and later",
        (Evidence(f"{arm.method} passed on devices {plan.devices}", _source(arm)),),
    )


def interrupted(arm: SyncArm, *_: Any) -> Finding:
    """The method was ended from outside, which says nothing about it."""
    return Finding(
        "weight-sync-interrupted",
        Severity.UNKNOWN,
        f"{arm.method} was {arm.stopped}",
        (Evidence(f"{len(arm.syncs)} syncs finished in {arm.wall_s:.0f} s", _source(arm)),),
    )


def did_not_end(arm: SyncArm, *_: Any) -> Finding:
    """Stuck if no sync finished within a minute; otherwise only too slow for the budget."""
    evidence = (Evidence(f"{len(arm.syncs)} syncs finished in {arm.deadline_s:.0f} s", _source(arm)),)
    more_time = Remedy("you", "Give more time with --budget (budget_s in the notebook).")
    if arm.passed and arm.variants:
        return Finding(
            "weight-sync-cut",
            Severity.NOTE,
            f"{arm.method} was measured, but {arm.deadline_s:.0f} s were too short to measure this "
            "method with busy engines or other bucket sizes",
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
        f"{arm.method} hangs, because no sync finished in {arm.deadline_s:.0f} s",
        evidence,
        (
            Remedy(
                "you",
                "First run steps 03-fewer-gpus and 04-transports, which find the pair of GPUs and the "
                "transport. To repeat the sync by hand:",
                (arm.shell_line,),
            ),
        ),
    )


def failed(arm: SyncArm, *_: Any) -> Finding:
    """Any other failure; with a cause if a rank's message is known."""
    known = recognised(arm)
    cause = own_words(known) if known else None
    status = known and ("possible" if known.status == "possible" else "likely")
    return Finding(
        "weight-sync-failed",
        Severity.BROKEN,
        f"{arm.method} failed" + (f": {cause.title}" if cause else ""),
        (Evidence(_shown(arm), _source(arm)), Evidence("ranks: " + ", ".join(arm.ended))),
        remedies(cause, status)
        if cause
        else (
            Remedy(
                "you",
                "Repeat the sync by hand, and use step 03-fewer-gpus to find a smaller run that fails.",
                (arm.shell_line,),
            ),
        ),
        cause=cause and cause.id,
        status=status,
    )


def gb(size_bytes: int) -> str:
    """ "15.23 GB" (1e9 bytes), or "3.10 MB" (1e6 bytes) below 10 MB."""
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.2f} MB"
