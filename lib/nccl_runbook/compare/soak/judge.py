"""What a soak shows: whether it failed, how often, and whether B fails less often than A."""

import math
import shlex

from nccl_runbook.compare.facts import HIDDEN, NOT_SET, Difference
from nccl_runbook.compare.soak.facts import COUNTERS, Soak
from nccl_runbook.core.facts import Gap, counted
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.search.group_testing import wilson

SURE = 0.05  # of a difference as large by chance


def judge(soak: Soak) -> list[Finding]:
    """The failures of A or their absence, the comparison with B, and counters that moved."""
    if not soak.runs:
        remedy = Remedy("you", "Give `soak` more time with --for.")
        return [
            Finding(
                "soak-no-run",
                Severity.UNKNOWN,
                f"no run finished before the soak ended: {soak.ended}",
                (),
                (remedy,),
            )
        ]
    findings = [_failed(soak)] if soak.failed("A") else [_passed(soak)]
    if len(soak.arms) == 2:
        findings.append(_compared(soak))
    return [*findings, *_moved(soak)]


def rate(soak: Soak, arm: str) -> str:
    """ "2 of 40 runs failed (95% interval: 1.4% to 16.5%)"; without a failure the rule of three, 3/N."""
    failed, runs = len(soak.failed(arm)), len(soak.of(arm))
    if failed:
        low, high = wilson(failed, runs)
        return f"{failed} of {counted(runs, 'run')} failed (95% interval: {low:.1%} to {high:.1%})"
    return f"0 of {counted(runs, 'run')} failed" + (f" (95% upper bound: {3 / runs:.1%})" if runs > 3 else "")


def _counts(soak: Soak) -> str:
    """The rates of all arms; the interval of one with failures is left to the evidence."""
    return "; ".join(_name(soak, arm) + rate(soak, arm).partition(" (95% interval")[0] for arm in soak.arms)


def _time(seconds: float) -> str:
    """ "90 s"; whole minutes from 120 s on."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def _passed(soak: Soak) -> Finding:
    """No run of A failed: healthy on GPUs, unknown if the ranks ran on the CPU."""
    ran_s = sum(run.wall_s for run in soak.of("A"))
    bound = f"95% upper bound: {float(f'{3 * 3600 / max(ran_s, 0.001):.2g}'):,g} failures per hour"
    evidence = (
        Evidence(f"the soak ended because {soak.ended}", soak.what),
        Evidence(bound, "rule of three (3 divided by the time without a failure)"),
    )
    text = f"{_counts(soak)}, in {_time(soak.wall_s)}"
    if soak.on_gpus:
        return Finding("soak-passed", Severity.OK, text, evidence)
    text = f"the ranks ran on the CPU over Gloo, which says nothing about NCCL and GPUs; {text}"
    remedy = Remedy("you", "Run `soak` on the node that has the GPUs.")
    return Finding("soak-rehearsed", Severity.UNKNOWN, text, evidence, (remedy,))


def _failed(soak: Soak) -> Finding:
    """At least one run of A failed; B is the workaround if it fails less often."""
    first = soak.failed("A")[0]
    number = [*soak.runs].index(first) + 1
    text = f"{_counts(soak)}; the first failed run was run {number} ({first.ended})"
    evidence = (
        *([Evidence(rate(soak, "A"), soak.what)] if len(soak.arms) == 1 else []),
        *(Evidence(line, f"run {number}, last lines") for line in [*first.last_lines][-4:]),
        Evidence(f"the soak ended because {soak.ended}", soak.what),
    )
    remedy = [Remedy("you", "Find the cause in what the failed runs printed:", (soak.diagnose,))]
    if fewer(soak) == "B":
        why = "As a workaround, use these settings, with which the job fails less often:"
        remedy = [Remedy("your launcher", why, tuple(map(_set, soak.differences))), *remedy]
    return Finding("soak-failed", Severity.BROKEN, text, evidence, tuple(remedy))


def _set(difference: Difference) -> str:
    """The line of a shell that sets B's value."""
    if difference.b == NOT_SET:
        return f"unset {difference.setting}"
    value = "   # your value" if difference.b == HIDDEN else shlex.quote(difference.b)
    return f"export {difference.setting}={value}"


def _name(soak: Soak, arm: str) -> str:
    """ "B (NCCL_P2P_DISABLE=1): "; empty if only A ran."""
    settings = ", ".join(f"{d.setting}={d.b}" for d in soak.differences) if arm == "B" else "your settings"
    return f"{arm} ({settings}): " if len(soak.arms) > 1 else ""


def fewer(soak: Soak) -> str:
    """The arm that fails less often, "A" or "B"; empty if chance explains the difference, or only A ran."""
    if len(soak.arms) < 2 or _chance(soak) >= SURE:
        return ""
    return min("A", "B", key=lambda arm: len(soak.failed(arm)) / len(soak.of(arm)))


def _chance(soak: Soak) -> float:
    """Probability that A and B differ by chance as much as they do."""
    a, b = ((len(soak.failed(arm)), len(soak.of(arm))) for arm in ("A", "B"))
    return fisher(*a, *b)


def _compared(soak: Soak) -> Finding:
    """Whether A or B fails less often."""
    chance = f"probability of a difference this large by chance: {_chance(soak):.3g} (Fisher's exact test)"
    evidence = (
        *(Evidence(f"{arm}: {rate(soak, arm)}", "alternating runs") for arm in ("A", "B")),
        Evidence(chance, "both counts"),
    )
    if not fewer(soak):
        text = "the counts do not show whether A or B fails less often. Run `soak` longer"
        return Finding("soak-same-rate", Severity.NOTE, text, evidence)
    return Finding(
        "soak-rates-differ",
        Severity.NOTE,
        f"set-up {fewer(soak)} fails less often than the other set-up",
        evidence,
    )


def fisher(failed_a: int, runs_a: int, failed_b: int, runs_b: int) -> float:
    """Two-sided probability of counts at least as far apart if both arms fail alike (R. A. Fisher, 1922)."""
    failed, runs = failed_a + failed_b, runs_a + runs_b

    def chance(of_a: int) -> float:
        return math.comb(runs_a, of_a) * math.comb(runs_b, failed - of_a) / math.comb(runs, failed)

    this = chance(failed_a)
    every = map(chance, range(max(0, failed - runs_b), min(runs_a, failed) + 1))
    return min(1.0, sum(c for c in every if c <= this * (1 + 1e-9)))


def _moved(soak: Soak) -> list[Finding]:
    """Counters of a GPU that got worse: errors that grew, links and lanes that went."""
    if isinstance(soak.before, Gap) or isinstance(soak.after, Gap):
        return []
    findings = []
    for gpu, before in soak.before.items():
        after = soak.after.get(gpu, {})
        for name in COUNTERS:
            was, now = before.get(name), after.get(name)
            worse = was is not None and now is not None and (now > was if name in COUNTERS[:2] else now < was)
            if worse:
                text = f"GPU {gpu}: {name} went from {was} to {now} during the soak"
                remedy = Remedy(
                    "the administrator", "Test this GPU and its links before you use the GPU again."
                )
                findings.append(
                    Finding("gpu-counter-moved", Severity.WARN, text, (Evidence(text, "NVML"),), (remedy,))
                )
    return findings
