"""Tables of weight syncs: who sits where, and what each method took."""
from __future__ import annotations

from typing import Any

from nccl_runbook.facts import Gap
from nccl_runbook.facts.sync import SyncArm, SyncRuns
from nccl_runbook.report.tables import Cell, Table


def placement_table(plan: Any) -> Table:
    """Ranks of the weight-update group (a planning.placement.Placement, or a Gap) and their GPUs; a GPU that two share is marked."""
    columns = ["rank", "role", "device", "GPU"]
    if isinstance(plan, Gap):
        return Table("The weight-update group", columns, [], f"Not planned: {plan}")
    rows = []
    for seat in plan.seats:
        shared = any(seat.rank in ranks for ranks in plan.shared)
        word = "shared: NCCL will refuse it" if shared else "its own" if seat.place else "none"
        rows.append([f"rank {seat.rank}", seat.role, seat.place or "CPU", Cell(word, "note" if shared else "")])
    return Table("The weight-update group", columns, rows)


def methods_table(runs: SyncRuns | Gap) -> Table:
    """One row a method: first and steady sync, rate, and where the seconds went."""
    columns = ["method", "first s", "steady s", "GB/s", "trainer", "slowest engine", "bytes"]
    if isinstance(runs, Gap):
        return Table("Weight syncs", columns, [], f"Not measured: {runs}")
    rows = [_row(method, arm, runs) for method, arm in runs.arms.items()]
    return Table(f"{runs.model}: {_layers(runs)}{runs.tensors} tensors, {runs.size_bytes / 1e9:.2f} GB", columns, rows, _note(runs))


def _layers(runs: SyncRuns) -> str:
    return "" if runs.layers == runs.layers_of else f"only {runs.layers} of {runs.layers_of} layers, "


def _note(runs: SyncRuns) -> str:
    fsync = [s.fsync_s for a in runs.run for s in a.syncs if s.fsync_s is not None]
    words = [f"Steady: the median of {max(1, runs.repeats - 1)} after the first, with its phases."]
    if any(a.method.startswith("nccl") for a in runs.run):
        words.append("NCCL's first sync makes the communicator too.")
    if "disk" in runs.arms:
        words.append(f"Disk: {runs.file_system or 'unknown file system'} at {runs.directory}, no fsync in between; read, not mapped.")
    if fsync:
        words.append(f"fsync after the last sync, not counted: {fsync[-1]:.2f} s.")
    if runs.on_cpu:
        words.append("Rehearsal on the CPU: these are no figures for GPUs.")
    return " ".join(words)


def _row(method: str, arm: SyncArm | Gap, runs: SyncRuns) -> list:
    if isinstance(arm, Gap):
        return [method, "", "", "", "", "", Cell(f"not run ({arm})", "unknown")]
    steady = arm.steady
    if steady is None or arm.first_s is None:
        return [method, "", "", "", "", "", _verdict(arm)]
    rate = runs.size_bytes / steady.seconds / 1e9
    return [method, f"{arm.first_s:.4f}", f"{steady.seconds:.4f}", f"{rate:.1f}", _phases(steady.trainer), _phases(steady.engine),
            _verdict(arm)]


def _phases(phases: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.4f}" for name, seconds in phases.items())


def _verdict(arm: SyncArm) -> Cell:
    if arm.wrong:
        return Cell(f"wrong: {arm.wrong[0]['tensor']}", "broken")
    if arm.complete:
        return Cell("all compared, all right", "ok")
    if arm.shortage:
        return Cell("not enough " + arm.shortage.what, "unknown")
    return Cell("did not end in time" if arm.timed_out else "did not pass", "unknown")
