"""Tables of weight syncs: who sits where, and what each method took."""
from __future__ import annotations

from nccl_runbook.facts import Gap
from nccl_runbook.facts.sync import SyncArm, SyncRuns
from nccl_runbook.report.tables import Cell, Table


def placement(seats: list) -> Table:
    """Ranks of the weight-update group and their GPUs; a GPU that two of them share is marked."""
    places = [seat.place for seat in seats]
    rows = [[f"rank {seat.rank}", seat.role, Cell(seat.place or "CPU", "note" if seat.place and places.count(seat.place) > 1 else ""),
             "shared" if seat.place and places.count(seat.place) > 1 else "its own" if seat.place else "no GPU"] for seat in seats]
    return Table("The weight-update group", ["rank", "role", "device", "GPU"], rows)


def methods(runs: SyncRuns | Gap) -> Table:
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
    words = [f"Steady: median of {max(1, runs.repeats - 1)} after the first."]
    if "disk" in runs.arms:
        words.append(f"Disk: {runs.file_system or 'unknown file system'} at {runs.directory}, through the page cache; read, not mapped.")
    if fsync:
        words.append(f"fsync after the last sync, not counted: {fsync[-1]:.2f} s.")
    if runs.on_cpu:
        words.append("Rehearsal on the CPU: these are no figures for GPUs.")
    return " ".join(words)


def _row(method: str, arm: SyncArm | Gap, runs: SyncRuns) -> list:
    if isinstance(arm, Gap):
        return [method, "", "", "", "", "", Cell(f"not run ({arm})", "unknown")]
    if not arm.syncs or arm.steady_s is None or arm.first_s is None:
        return [method, "", "", "", "", "", _verdict(arm)]
    last = arm.syncs[-1]
    rate = runs.size_bytes / arm.steady_s / 1e9
    return [method, f"{arm.first_s:.4f}", f"{arm.steady_s:.4f}", f"{rate:.1f}", _phases(last.trainer), _phases(last.engine), _verdict(arm)]


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
