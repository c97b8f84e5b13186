"""Is it faster to send the shards straight to the engine ranks than to gather and broadcast them, and what
changed than everything?"""

from nccl_runbook.core.findings import Evidence, Finding, Severity
from nccl_runbook.sync.facts import SyncRuns
from nccl_runbook.sync.reshard.facts import CONTROLS, control, resharded


def against_control(runs: SyncRuns) -> list[Finding]:
    """One finding for each method that passed with its control: ratio of their steady syncs, and where the
    seconds went."""
    passed = {arm.method: arm.steady for arm in runs.run if arm.passed and arm.steady}
    by = {arm.method: arm.by for arm in runs.run}
    return [
        Finding(
            "weight-sync-reshard" if resharded(method) else "weight-sync-delta",
            Severity.NOTE,
            f"{method} took {mine.seconds / other.seconds:.2f} of the time of {control(method)} "
            f"({mine.seconds:.4f} s against {other.seconds:.4f} s, {by[method]})",
            tuple(
                Evidence(
                    f"{name}, slowest engine: " + ", ".join(f"{p} {s:.4f} s" for p, s in time.engine.items()),
                    f"runs.arms.{name}",
                )
                for name, time in ((method, mine), (control(method), other))
            ),
        )
        for method, mine in passed.items()
        if method.partition("@")[0] in CONTROLS and (other := passed.get(control(method)))
    ]
