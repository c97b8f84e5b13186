"""What switching a transport off proves. An arm without effect is never a pass, and passing with P2P off is never the fix."""

from __future__ import annotations

import dataclasses

from nccl_runbook.facts import Gap
from nccl_runbook.facts.experiments import Arm, Arms, Trial
from nccl_runbook.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.knowledge.causes import causes
from nccl_runbook.rules.failures import explain, remedies

RESTS_ON = ()  # arms that were not run are judged below
# what passing with this switched off points to, when the control fails
POINTS_TO = {
    "P2P off": "p2p-broken-acs-iommu",
    "SHM off": "shm-too-small",
    "IB off": "network-path-blocked",
    "interface pinned": "socket-interface-wrong",
}


def gone(acts_on: list[str], world_transports: dict[str, int]) -> bool:
    return not any(name.startswith(prefix) for name in world_transports for prefix in acts_on)


def acted(arm: Arm, control: Trial) -> bool | None:
    """Whether NCCL's log proves that the arm acted: what it removes was there in the control and is gone. None: no proof either way."""
    if isinstance(arm.trial, Gap):
        return None
    before, after, taken = control.world.transports, arm.trial.world.transports, arm.trial.world.set_by_environment
    if not arm.acts_on:
        return None if isinstance(taken, Gap) else all(f"{k}={v}" in taken for k, v in arm.env.items())
    if isinstance(before, Gap) or isinstance(after, Gap) or not after:
        return None
    if not before:  # the control failed before it connected: only what the arm left can be seen
        return gone(arm.acts_on, after)
    return not gone(arm.acts_on, before) and gone(arm.acts_on, after)


def outcome(arm: Arm, control: Trial) -> str:
    """ "pass", "no effect", "no proof", "not run", else how it failed."""
    if isinstance(arm.trial, Gap):
        return "not run"
    if not arm.trial.passed:
        return arm.trial.world.ended
    proof = acted(arm, control)
    return "pass" if proof else "no effect" if proof is False else "no proof"


def outcomes(arms: Arms | Gap) -> dict[str, str]:
    """The outcome of every arm by its name."""
    return {} if isinstance(arms, Gap) else {a.name: outcome(a, arms.control) for a in arms.arms}


def judge(arms: Arms | Gap) -> list[Finding]:
    """Findings of step 04. The control decides how the arms are read."""
    if isinstance(arms, Gap):
        severity = Severity.SKIPPED if arms.reason == "unsupported" else Severity.UNKNOWN
        return [Finding("transports-not-run", severity, arms.detail or str(arms))]
    if arms.backend == "gloo":
        return _rehearsal(arms)
    after = arms.control_after
    if arms.control.passed and isinstance(after, Trial) and not after.passed:
        title = f"inconclusive: the control passed before the arms and {after.world.ended} after them"
        return [Finding("control-changed", Severity.UNKNOWN, title, (Evidence(after.world.shell_line, "by hand"),))]
    return _control_passes(arms) if arms.control.passed else _control_fails(arms)


def _rehearsal(arms: Arms) -> list[Finding]:
    if not arms.control.passed:
        return [explain("rehearsal-fails", "rehearsal on the CPU: control", arms.control.world, arms.control.again)]
    broken = [a for a in arms.arms if isinstance(a.trial, Trial) and not a.trial.passed]
    if broken:
        return [explain("rehearsal-fails", f"rehearsal on the CPU: {a.name}", a.trial.world, a.trial.again) for a in broken]
    return [
        Finding(
            "rehearsed",
            Severity.UNKNOWN,
            "no GPU was used: NCCL's transports were not tested; the same ranks passed over Gloo",
            (Evidence("control and interface pinned to lo", "table below"),),
        )
    ]


def _control_passes(arms: Arms) -> list[Finding]:
    """Nothing is broken as it stands. An arm that fails is a fallback that would not work, which is worth a note, not an alarm."""
    found = [_loss(arms), *switched_off_already(arms)]
    for arm in arms.arms:
        if isinstance(arm.trial, Trial) and not arm.trial.passed:
            fault = explain("fallback-fails", f"with {arm.name}", arm.trial.world, arm.trial.again)
            found.append(
                Finding("fallback-fails", Severity.NOTE, f"{fault.title} (not what your job uses: the control passed)", fault.evidence)
            )
    return found


def switched_off_already(arms: Arms) -> list[Finding]:
    """The user's own variables switch a transport off: the bandwidth is that of what is left. Harmless on cards without P2P."""
    taken = arms.control.world.set_by_environment
    off = [] if isinstance(taken, Gap) else [t for t in taken if t in ("NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1", "NCCL_IB_DISABLE=1")]
    if not off:
        return []
    again = Remedy("your launcher", "If nobody knows why it is set, take it out, run this step again and compare the bandwidth:",
                   (f"unset {' '.join(t.partition('=')[0] for t in off)}",))
    title = f"your environment switches a transport off: {', '.join(off)}"
    seen = Evidence(f"set by environment: {', '.join(off)}", "NCCL's log")
    return [Finding("switched-off-already", Severity.NOTE, title, (seen,), (again,))]


def _price(arm: Arm, control: Trial) -> str:
    before, after = control.world.busbw_gb_per_s("all_reduce"), arm.trial.world.busbw_gb_per_s("all_reduce")
    return (
        f"{arm.name}: {after:.1f} GB/s, {before / after:.1f} times slower than the control" if before and after else f"{arm.name}: passed"
    )


def _loss(arms: Arms) -> Finding:
    passed = [a for a in arms.arms if outcome(a, arms.control) == "pass" and a.acts_on]
    bandwidth = arms.control.world.busbw_gb_per_s("all_reduce")
    via = arms.control.world.transports
    evidence = [Evidence(f"control via {', '.join(sorted(via))}", "NCCL's log")] if not isinstance(via, Gap) and via else []
    evidence += [Evidence(f"price of {_price(a, arms.control)}", "table below") for a in passed]
    speed = f" at {bandwidth:.1f} GB/s" if bandwidth else ""
    return Finding(
        "transports-pass", Severity.OK, f"your environment as it is passes{speed}: no transport has to be switched off", tuple(evidence)
    )


def _pass_by_chance(arms: Arms) -> list[str]:
    """Where the same as the control passed: its repetition, the control again, an arm without effect. Then no arm proves anything."""
    again, after = arms.control.again, arms.control_after
    found = ["the control, repeated"] if again is not None and again.passed else []
    found += [a.name for a in arms.arms if outcome(a, arms.control) == "no effect"]
    return found + (["control again"] if isinstance(after, Trial) and after.passed else [])


def _cure(arms: Arms) -> Arm | None:
    """The arm with the fewest switches that passes, unless another that does not include it passes too: then neither is the reason."""
    curing = sorted((a for a in arms.arms if outcome(a, arms.control) == "pass"), key=lambda a: len(a.env))
    return curing[0] if curing and all(curing[0].env.items() <= a.env.items() for a in curing) else None


def _control_fails(arms: Arms) -> list[Finding]:
    """Only an arm that passes with proof that it acted, while everything without it fails, tells which transport."""
    fault = explain("control-fails", "your environment as it is", arms.control.world, arms.control.again)
    by_chance, best = _pass_by_chance(arms), _cure(arms)
    evidence = (*fault.evidence, *(Evidence(f"{a.name}: {outcome(a, arms.control)}", "table below") for a in arms.arms))
    if by_chance:
        evidence = (*evidence, Evidence(f"it comes and goes, so no switch decides: passed were {', '.join(by_chance)}", "table below"))
    if best is None or by_chance or fault.cause is not None:
        return [dataclasses.replace(fault, evidence=evidence)]
    return [_at_fault(arms, best, fault, evidence)]


def _at_fault(arms: Arms, best: Arm, fault: Finding, evidence: tuple[Evidence, ...]) -> Finding:
    """*likely* where the control was seen to use what the arm removes; *possible* where it failed before it connected."""
    cause = causes().get(POINTS_TO.get(best.name, ""))
    lines = tuple(f"export {k}={v}" for k, v in best.env.items())
    here = ", on this host alone," if best.env.get("NCCL_SOCKET_IFNAME") == "lo" else ""  # lo reaches no other host
    meanwhile = Remedy("you", f"Only until that is mended{here} run with {best.name} ({_price(best, arms.control)}):", lines)
    title = f"your environment as it is {arms.control.world.ended}, and passes with {best.name}"
    status = "likely" if arms.control.world.transports or not best.acts_on else "possible"
    real = remedies(cause) if cause else ()
    return Finding("transport-at-fault", fault.severity, title, evidence, (*real, meanwhile), cause and cause.id, cause and status)
