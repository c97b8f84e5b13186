"""Which way to move the weights here: the decision table with what was measured, and what the user's own sync spends its seconds on."""
import itertools
import re
from collections.abc import Sequence

from nccl_runbook.causes.causes import recognise
from nccl_runbook.causes.toml import table
from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.sync.facts import ALL_OF_THEM, OwnSync, SyncRuns

FASTER = 1.5  # times; another method that is so much faster than the one the table names is told


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
    if not (fit := [a.method for m in row["order"]
                    for a in runs.run if a.passed and a.method.partition("@")[0] == m]):
        return None
    seconds = {a.method: a.steady_s or 0.0 for a in runs.run if a.passed}
    quickest = min(seconds, key=lambda m: seconds[m])
    other = f"; {quickest} was faster, {seconds[quickest]:.4f} s" if seconds[quickest] * FASTER < seconds[fit[0]] else ""
    return Finding(
        "weight-sync-choice", Severity.NOTE,
        f"{row['title']}: {fit[0]}, {seconds[fit[0]]:.4f} s a sync of {runs.size_bytes / 1e9:.2f} GB "
        f"here{other}",
        tuple(Evidence(f"{m}: {s:.4f} s", f"runs.arms.{m}")
              for m, s in sorted(seconds.items(), key=lambda item: item[1])),
        tuple(Remedy("you", f"{name}:", lines) for name, lines in lines_for(fit[0])))


def own_sync(own: OwnSync | Gap) -> list[Finding]:
    """The longest phase of the longest sync, of all processes together where that is known, else of one:
    where the user's seconds go."""
    if isinstance(own, Gap) or not own.syncs:
        return [Finding("own-sync-not-seen", Severity.UNKNOWN,
                        own.detail if isinstance(own, Gap) else "no sync of yours was recorded")]
    slowest = max([s for s in own.syncs if s.who == ALL_OF_THEM] or own.syncs,
                  key=lambda s: sum(s.phases.values()))
    whole, phase = sum(slowest.phases.values()), max(slowest.phases, key=lambda p: slowest.phases[p])
    return [Finding("own-sync-phases", Severity.NOTE,
                    f"your own sync took {whole:.3f} s on {slowest.who}, {slowest.phases[phase]:.3f} s of it "
                    f"in {phase}",
                    (Evidence(", ".join(f"{p} {s:.3f} s" for p, s in slowest.phases.items()),
                              slowest.source),),
                    (Remedy("you",
                            table("sync/choice")["own"]["advice"].get(
                                phase, "See what your code does in that phase.")),))]


def phase_of(frames: Sequence[str]) -> str:
    """The phase of a weight sync that a stack shows. ``frames``: "function file", innermost first, with or
    without the class; "" where none of them syncs weights."""
    # without class or <locals>
    own, named = table("sync/choice")["own"], [re.sub(r"^[^ ]*\.", "", frame) for frame in frames]
    roots = [number for number, frame in enumerate(named) if re.match(own["sync"], frame)]
    inside = named[:roots[-1] + 1] if roots else []
    whole = (phase for phase, names in own["phases"].items() if any(re.search(names, f) for f in inside))
    leaf = (phase for f in inside for phase, names in own["innermost"].items() if re.search(names, f))
    return next(itertools.chain(whole, leaf), "other") if inside else ""
