"""Did every method bring every byte, and what does the choice of method cost here?"""
from nccl_runbook.causes.causes import causes, recognise
from nccl_runbook.causes.failures import remedies
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.placement.placement import Placement
from nccl_runbook.sync.facts import METHODS, SyncArm, SyncRuns
from nccl_runbook.sync.judge_choice import choice

# not on nccl-one-gpu, an experiment that most versions do not have; with buckets named, @64+512, the path
# ends in a digit
RESTS_ON = ("plan", "runs", *(f"runs.arms.{m}{buckets}" for m in METHODS if m != "nccl-one-gpu"
                              for buckets in ("", "@*[0-9]")))

SLOWER = 2.0              # times; below that disk against NCCL is no news
HANG_S = 60.0             # an arm that finished no sync in that time is stuck, not slow
# GB/s in one direction of NVLink 3, 4 and 5: half of the vendor's figure, which adds both directions
NVLINK_GB_PER_S = {"A100": 300.0, "A800": 200.0, "H100": 450.0, "H200": 450.0, "H800": 200.0, "B200": 900.0,
                   "B300": 900.0}
WIDEST_GB_PER_S = 900.0
HBM_GB_PER_S = 4000.0     # a copy inside one GPU reads and writes: half of HBM3e's 8 TB/s (B200)
PCIE_GB_PER_S = 126.0     # PCIe 6 x16 in one direction: what goes through the CPU cannot be faster


def judge(runs: SyncRuns | Gap, plan: Placement | Gap) -> list[Finding]:
    """One finding or more; none where nothing was run, which the Gap then says."""
    if isinstance(runs, Gap) or isinstance(plan, Gap):
        return []
    findings = [f for arm in runs.run for f in (of_one(arm, runs, plan), rate_above_link(arm, runs)) if f]
    findings += [f for f in (choice(runs), disk_slower_than_nccl(runs), rehearsed_without_gpu(runs),
                             bytes_verified(runs)) if f]
    # the refusal of several NCCL methods is one finding
    first = {(f.id, f.title): f for f in reversed(findings)}
    return [f for f in findings if first[f.id, f.title] is f]


def of_one(arm: SyncArm, runs: SyncRuns, plan: Placement) -> Finding | None:
    """What is wrong with one method; None if nothing is."""
    if arm.complete and not arm.wrong:
        return shared_gpu_not_refused(arm, runs, plan)
    return (wrong_bytes(arm) or not_enough(arm) or interrupted(arm) or refused(arm, runs, plan)
            or failed_on_one_gpu(arm, runs, plan) or did_not_end(arm) or failed(arm))


def _messages(arm: SyncArm) -> list[str]:
    """What the failed ranks raised and printed, line by line."""
    return [line for text in [*arm.errors.values(), *arm.last_lines] for line in text.splitlines()]


def _source(arm: SyncArm) -> str:
    return f"runs.arms.{arm.method}"


def wrong_bytes(arm: SyncArm) -> Finding | None:
    """Bytes differ after a sync that reported success: an engine would serve wrong weights without a word."""
    if not arm.wrong:
        return None
    w = arm.wrong[0]
    return Finding(
        "weight-sync-wrong-bytes", Severity.BROKEN,
        f"{arm.method} delivered wrong bytes: {w['tensor']} on rank {w['rank']}, sync {w['repeat'] + 1}",
        (Evidence(f"{w['count']} tensors differ in that sync; {w['words']} 16-bit words of {w['tensor']}",
                  _source(arm)),),
        (Remedy("you",
                "Do not sync weights this way until it is explained. See whether it stays with one GPU or "
                "pair when repeated:", (arm.shell_line,)),))


def not_enough(arm: SyncArm) -> Finding | None:
    """Too little memory or space is no fault of the method: it was not tested."""
    if arm.shortage is None:
        return None
    s = arm.shortage
    return Finding(
        "weight-sync-not-enough", Severity.UNKNOWN, f"{arm.method} was not measured: not enough {s.what}",
        (Evidence(f"{_gb(s.needed_bytes)} needed, {_gb(s.free_bytes)} free", _source(arm)),),
        (Remedy("you",
                "Name a directory with room by the parameter directory." if " in " in s.what
                else "Free memory, or choose a smaller model."),))


def _shared(runs: SyncRuns, plan: Placement) -> bool:
    """Whether two ranks sit on one GPU, by the plan or by the UUIDs that the ranks saw."""
    known = [u for u in runs.uuids if u]
    return bool(plan.shared) or len(set(known)) < len(known)


def refused(arm: SyncArm, runs: SyncRuns, plan: Placement) -> Finding | None:
    """NCCL refuses two ranks on one GPU. Expected where they sit there; where UUIDs differ, the bus ids must
    be equal (NCCL to 2.29)."""
    known = recognise(_messages(arm)) if arm.method.startswith("nccl") else None
    if known is None or known[0].id != "duplicate-gpu":
        return None
    message = Evidence(known[1], _source(arm))
    if _shared(runs, plan):
        cause = causes()["trainer-and-engine-share-gpu"]
        title = f"{cause.title}, so NCCL refuses to connect them (expected here); the other methods need no second GPU"
        return Finding(
            cause.id, Severity.NOTE, title,
            (message,
             Evidence(f"planned devices by rank: {plan.devices}; UUIDs seen: {', '.join(runs.uuids)}",
                      "plan")), remedies(cause), cause.id, "established")
    cause = causes()["bus-id-collision"]
    different = all(runs.uuids) and len(set(runs.uuids)) == len(runs.uuids)
    title = "NCCL says that two ranks share a GPU, but they were placed on different ones"
    status = "likely" if different else "possible"
    return Finding(
        "refused-though-gpus-differ", Severity.BROKEN, title,
        (message, Evidence(f"UUIDs: {', '.join(u or 'unknown' for u in runs.uuids)}", "runs.uuids")),
        remedies(cause, status), cause.id, status)


def failed_on_one_gpu(arm: SyncArm, runs: SyncRuns, plan: Placement) -> Finding | None:
    """NCCL between two ranks on one GPU is not made to work, so an end without its usual message (a peer's
    echo, a hang of the experimental mode) tells nothing about this machine either."""
    if not (arm.method.startswith("nccl") and _shared(runs, plan)) or recognise(_messages(arm)):
        return None
    cause = causes()["trainer-and-engine-share-gpu"]
    return Finding(
        "failed-on-one-gpu", Severity.NOTE,
        f"{arm.method} did not work between two ranks on one GPU (expected), without NCCL's usual message",
        (Evidence([*_messages(arm), "no rank said anything"][0], _source(arm)),
         Evidence("ranks: " + ", ".join(arm.ended), _source(arm))), remedies(cause), cause.id, "likely")


def shared_gpu_not_refused(arm: SyncArm, runs: SyncRuns, plan: Placement) -> Finding | None:
    connected = arm.method.startswith("nccl") and _shared(runs, plan)
    return Finding(
        "shared-gpu-not-refused", Severity.NOTE,
        "NCCL connected two ranks on one GPU: an experimental mode of 2.30 and later",
        (Evidence(f"{arm.method} passed on devices {plan.devices}", _source(arm)),)) if connected else None


def interrupted(arm: SyncArm) -> Finding | None:
    """Ended from outside: that says nothing of the method."""
    return Finding(
        "weight-sync-interrupted", Severity.UNKNOWN, f"{arm.method} was {arm.stopped}",
        (Evidence(f"{len(arm.syncs)} syncs were finished in {arm.wall_s:.0f} s",
                  _source(arm)),)) if arm.stopped else None


def did_not_end(arm: SyncArm) -> Finding | None:
    """Stuck if not one sync was finished in a minute; otherwise only too slow for the budget."""
    if not arm.timed_out:
        return None
    evidence = (Evidence(f"{len(arm.syncs)} syncs were finished in {arm.deadline_s:.0f} s", _source(arm)),)
    more_time = Remedy("you", "Give the step a larger budget_s.")
    if arm.passed and arm.variants:
        return Finding(
            "weight-sync-cut", Severity.NOTE,
            f"{arm.method} was measured; {arm.deadline_s:.0f} s were too short to measure it with engines "
            "busy or other buckets", evidence, (more_time,))
    if arm.syncs or arm.deadline_s < HANG_S or "disk" in arm.method:
        return Finding(
            "weight-sync-too-slow", Severity.UNKNOWN,
            f"{arm.method} did not end within {arm.deadline_s:.0f} s", evidence, (more_time,))
    advice = "See 03-fewer-gpus and 04-transports first: they say which pair and which transport. By hand:"
    return Finding("weight-sync-hangs", Severity.BROKEN,
                   f"{arm.method} hangs: no sync was finished in {arm.deadline_s:.0f} s", evidence,
                   (Remedy("you", advice, (arm.shell_line,)),))


def failed(arm: SyncArm) -> Finding:
    """Any other end: with its cause where a rank's message is known, without one where it is not."""
    messages = _messages(arm)
    known = recognise(messages)
    cause = known[0] if known and known[0].id != "duplicate-gpu" else None
    return Finding(
        "weight-sync-failed", Severity.BROKEN, f"{arm.method} failed" + (f": {cause.title}" if cause else ""),
        (Evidence(known[1] if known else messages[0] if messages else "no rank said anything", _source(arm)),
         Evidence("ranks: " + ", ".join(arm.ended))),
        (*(remedies(cause) if cause else ()),
         Remedy("you", "Repeat it by hand, and see 03-fewer-gpus for a smaller world that fails too.",
                (arm.shell_line,))), cause and cause.id, cause and "likely")


def rate_above_link(arm: SyncArm, runs: SyncRuns) -> Finding | None:
    """A rate that no link has comes from a timer around an asynchronous call, so the figure tells nothing."""
    if not arm.syncs or not runs.size_bytes:
        return None
    seconds = min(s.seconds for s in arm.syncs)
    name = next((n for n in runs.gpu_names if n), "")
    nvlink = next((limit for key, limit in NVLINK_GB_PER_S.items() if key in name), WIDEST_GB_PER_S)
    here = HBM_GB_PER_S if len(set(runs.devices)) < len(runs.devices) else nvlink
    limit = nvlink if arm.method.startswith("nccl") else here if arm.method.startswith("ipc") else PCIE_GB_PER_S
    rate = runs.size_bytes / seconds / 1e9 if seconds else float("inf")
    return None if rate <= limit else Finding(
        "rate-above-link", Severity.UNKNOWN,
        f"{arm.method}: {rate:.0f} GB/s is above any link here ({limit:.0f} GB/s), so the timing is wrong",
        (Evidence(f"{_gb(runs.size_bytes)} in {seconds:.4f} s", _source(arm)),))


def disk_slower_than_nccl(runs: SyncRuns) -> Finding | None:
    """The price of the fallback, as measured here."""
    disk, nccl = runs.fastest("disk"), runs.fastest("nccl")
    if disk is None or nccl is None or not disk.steady_s or not nccl.steady_s or disk.steady_s < SLOWER * nccl.steady_s:
        return None
    return Finding(
        "disk-slower-than-nccl", Severity.NOTE,
        f"a sync through disk takes {disk.steady_s / nccl.steady_s:.0f} times as long as {nccl.method} here",
        (Evidence(f"disk {disk.steady_s:.3f} s, {nccl.method} {nccl.steady_s:.4f} s for "
                  f"{_gb(runs.size_bytes)} (steady syncs)", "runs.arms"),))


def rehearsed_without_gpu(runs: SyncRuns) -> Finding | None:
    return Finding(
        "rehearsed-without-gpu", Severity.UNKNOWN,
        "rehearsed on Gloo: no GPU here, so NCCL and copies to GPUs were not measured",
        (Evidence("the figures are those of this CPU and its disk",
                  "runs.devices"),)) if runs.on_cpu else None


def bytes_verified(runs: SyncRuns) -> Finding | None:
    good = [a for a in runs.run if a.complete and a.passed]
    if not good:
        return None
    part = "" if runs.layers == runs.layers_of else f", only {runs.layers} of {runs.layers_of} layers"
    return Finding(
        "weight-sync-verified", Severity.OK,
        f"every byte arrived with {', '.join(a.method for a in good)} ({runs.tensors} tensors, "
        f"{_gb(runs.size_bytes)}{part})",
        (Evidence(f"{sum(a.compared for a in good)} comparisons of all tensors, new bytes at each sync",
                  "runs.arms"),))


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.2f} MB"
