"""Tables of weight syncs: where ranks sit, how long each method took, what affects it, and which to use."""

from collections import Counter
from typing import Any

from nccl_runbook.causes.tables import table
from nccl_runbook.core.facts import Gap, counted
from nccl_runbook.report.pictures import Bars
from nccl_runbook.report.tables import Cell, Table, titled
from nccl_runbook.sync.facts import OwnSync, SyncArm, SyncRuns


@titled("The weight-update group")
def placement_table(plan: Any) -> Table:
    """Ranks of the weight-update group (a placement.Placement, or a Gap) and their GPUs; a shared GPU is
    marked."""
    shared = {rank for ranks in plan.shared for rank in ranks}
    return Table(
        "",
        ["rank", "role", "device", "GPU"],
        [
            [
                f"rank {s.rank}",
                s.role,
                s.place or "CPU",
                Cell("shared with another rank, so NCCL will refuse the group", "note")
                if s.rank in shared
                else Cell("its own" if s.place else "none"),
            ]
            for s in plan.seats
        ],
    )


@titled("Weight syncs")
def methods_table(runs: SyncRuns) -> Table:
    """One row a method: first and steady sync in seconds, rate in GB/s, and seconds by phase."""
    layers = "" if runs.layers == runs.layers_of else f"only {runs.layers} of {runs.layers_of} layers, "
    return Table(
        f" of {runs.model}: {layers}{runs.tensors} tensors, {runs.size_bytes / 1e9:.2f} GB",
        ["method", "first s", "steady s", "GB/s", "trainer", "slowest engine", "bytes"],
        [_row(method, arm, runs) for method, arm in runs.arms.items()],
        _note(runs),
        Bars("s", {a.method: list(a.steady.trainer.items()) for a in runs.run if a.steady}),
    )


@titled("By bucket size and engine load")
def sweeps_table(runs: SyncRuns) -> Table:
    """The same methods with one change (bucket, busy engines, fewer bytes), and t = N a + B / b from two
    sizes."""
    return Table(
        "",
        ["method", "bucket MiB", "engines multiply", "GB", "s", "GB/s", "a: us a tensor", "b: GB/s"],
        [row for arm in runs.run for row in _sweep(arm, runs)],
        "The columns a (time per tensor) and b (bandwidth) are computed with t = N a + B / b, for N tensors "
        "and B bytes. Two syncs were timed: one with the whole tensors, and one with a sixteenth of each "
        "tensor. Both columns are empty if the larger sync took hardly longer. If b is above the rate of "
        "the link, the work for each tensor overlaps with the transfer, and the formula does not hold.",
    )


def _sweep(arm: SyncArm, runs: SyncRuns) -> list[list]:
    fit = arm.fit(runs.tensors, runs.size_bytes) if runs.tensors else None
    fitted = [f"{fit[0] * 1e6:.1f}", f"{fit[1] / 1e9:.1f}"] if fit else ["", ""]
    return [
        [
            arm.method,
            v.bucket_mib,
            f"{v.busy} x {v.busy}" if v.busy else "idle",
            f"{v.size_bytes / 1e9:.3f}",
            f"{v.seconds:.4f}",
            f"{v.size_bytes / 1e9 / v.seconds:.1f}",
            *(["", ""] if number else fitted),
        ]
        for number, v in enumerate(sorted(arm.variants, key=lambda v: v.size_bytes))
    ]


def choice_table(here: str = "") -> Table:
    """The decision table. ``here``: key of the row that matches the measurement."""
    return Table(
        "Which method moves the weights",
        [
            "what connects trainer and engines",
            "every rank has its own GPU",
            "groups overlap",
            "GPUs shared without an error",
            "colocated",
        ],
        [
            [
                Cell(f"{r['title']} (here)", "note") if key == here else r["title"],
                r["decoupled"],
                r["overlap"],
                r["shared"],
                r["colocated"],
            ]
            for key, r in table("sync/choice")["topology"].items()
        ],
    )


@titled("Your own sync")
def own_table(own: OwnSync) -> Table:
    """The slowest of the user's own syncs, by rank or process, with seconds by phase."""
    slowest = {(s.rank, s.who): s for s in sorted(own.syncs, key=lambda s: sum(s.phases.values()))}
    read = sorted(Counter((s.rank, s.who) for s in own.syncs).values())
    each = " to ".join(dict.fromkeys(map(str, (*read[:1], *read[-1:]))))
    phases = list(dict.fromkeys(p for s in slowest.values() for p in s.phases))[:12]
    return Table(
        ", the slowest of each process",
        ["", "s", *phases],
        [
            [s.who, f"{sum(s.phases.values()):.3f}", *(f"{s.phases.get(p, 0):.3f}" for p in phases)]
            for _, s in sorted(slowest.items())[:64]
        ],
        f"Recorded syncs per process: {each}.",
        Bars("s", {s.who: list(s.phases.items()) for _, s in sorted(slowest.items())}),
    )


def _note(runs: SyncRuns) -> str:
    given = f"{runs.file_system or 'unknown file system'} at {runs.directory}"
    written = sorted({"/dev/shm" if "shm" in m else given for m in runs.arms if "disk" in m})
    fsync = [s.fsync_s for a in runs.run for s in a.syncs if s.fsync_s is not None]
    sentences = [
        "The steady sync is the one with the median time of "
        f"{counted(max(1, runs.repeats - 1), 'sync')} after the first. The phases are those of the "
        "steady sync."
    ]
    if any(a.method.startswith("nccl") for a in runs.run):
        sentences.append("NCCL's first sync also creates the communicator.")
    if written:
        sentences.append(
            f"Disk: files in {' and '.join(written)}, without fsync between writing and reading; every "
            "byte is read."
        )
    sentences += [f"{a.method}: by {a.by}." for a in runs.run if a.by]
    if fsync:
        sentences.append(
            f"An fsync after the last sync took {fsync[-1]:.2f} s. The times in this table do not include it."
        )
    if runs.on_cpu:
        sentences.append("This was a rehearsal on the CPU, so the figures are not valid for GPUs.")
    return " ".join(sentences)


def _row(method: str, arm: SyncArm | Gap, runs: SyncRuns) -> list:
    if isinstance(arm, Gap):
        return [method, *[""] * 5, Cell(f"not run ({arm})", "unknown")]
    tone = "ok" if arm.complete else "unknown"
    word, steady = Cell(arm.outcome, "broken" if arm.wrong else tone), arm.steady
    if steady is None:
        return [method, *[""] * 5, word]
    return [
        method,
        f"{arm.syncs[0].seconds:.4f}",
        f"{steady.seconds:.4f}",
        f"{runs.size_bytes / steady.seconds / 1e9:.1f}",
        _phases(steady.trainer),
        _phases(steady.engine),
        word,
    ]


def _phases(phases: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.4f}" for name, seconds in phases.items())


def tables(plan: Any, runs: SyncRuns) -> list[Table]:
    """The tables of what was measured and where, as the page of step 05 shows them."""
    return [placement_table(plan), methods_table(runs), sweeps_table(runs)]
