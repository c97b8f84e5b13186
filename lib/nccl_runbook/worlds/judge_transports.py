"""What switching a transport off proves. An arm without effect is never a pass, and passing with
P2P off is never the fix."""

import dataclasses
import re
from collections.abc import Iterator

from nccl_runbook.core.facts import Gap
from nccl_runbook.core.findings import Evidence, Finding, Severity
from nccl_runbook.messages.printed.failed_world import explain
from nccl_runbook.worlds.facts import NOT_RUN, Arm, Arms, Guilty, Pairs, Trial
from nccl_runbook.worlds.judge_arms import Decision, decide
from nccl_runbook.worlds.judge_control import _names, _price, _proof, _unset, control_fails, in_words, outcome
from nccl_runbook.worlds.judge_culprits import with_pairs

_SWITCHED_OFF = re.compile(r"NCCL_(P2P|SHM|IB)_DISABLE=1|NCCL_P2P_LEVEL=(0|LOC)")


def judge_transports(arms: Arms | Gap, pairs: Pairs | Gap = NOT_RUN) -> list[Finding]:
    """Findings of step 04. The control decides how the arms are read; if it fails, ``pairs`` show between
    which GPUs."""
    if isinstance(arms, Gap):
        return [
            Finding(
                "transports-not-run",
                Severity.SKIPPED if arms.reason == "unsupported" else Severity.UNKNOWN,
                arms.detail or str(arms),
            )
        ]
    control = arms.control
    if arms.backend == "gloo" and control.passed:
        return _rehearsal(arms)
    fault = (
        None
        if control.passed
        else explain("control-fails", "your unchanged environment", control.world, control.again)
    )
    decision = decide(in_words(arms, fault is not None and fault.status in ("established", "likely")))
    if fault is not None:
        return [
            with_pairs(
                dataclasses.replace(control_fails(arms, decision, fault), tried=_tried(arms, decision)), pairs
            )
        ]
    if decision.kind != "inconclusive":  # nothing is broken now
        return [
            _loss(arms),
            *_environment_costs(arms),
            *switched_off_already(arms),
            *(_fallback(a, a.trial) for a in arms.arms if isinstance(a.trial, Trial) and not a.trial.passed),
        ]
    world = next(
        t.world
        for t in (arms.control_after, *(a.trial for a in arms.arms))
        if isinstance(t, Trial) and not t.passed
    )
    evidence = (*explain("control-changed", "", world).evidence, Evidence(world.shell_line, "by hand"))
    return [Finding("control-changed", Severity.UNKNOWN, f"inconclusive: {decision.why}", evidence)]


def _rehearsal(arms: Arms) -> list[Finding]:
    # with what else there is of the same
    ran = [*((a.trial, None) for a in arms.arms), (arms.control_after, arms.control.world)]
    failed = [
        explain("rehearsal-fails", f"{t.name} on the CPU", t.world, t.again or same)
        for t, same in ran
        if isinstance(t, Trial) and not t.passed
    ]
    return failed or [
        Finding(
            "rehearsed",
            Severity.UNKNOWN,
            "no GPU was used, so NCCL's transports were not tested. The same ranks passed over Gloo",
            (
                Evidence(
                    "tests with your unchanged environment, and with GLOO_SOCKET_IFNAME=lo (only loopback)",
                    "table below",
                ),
            ),
        )
    ]


def _fallback(arm: Arm, trial: Trial) -> Finding:
    """An arm that fails beside a control that passes is a fallback that would not work: worth a note, not an
    alarm."""
    fault = explain("fallback-fails", f"with {arm.name}", trial.world, trial.again)
    return Finding(
        "fallback-fails",
        Severity.NOTE,
        f"{fault.title} (your job does not use this setting, and the test in your unchanged "
        "environment passed)",
        fault.evidence,
    )


def _environment_costs(arms: Arms) -> Iterator[Finding]:
    """The environment passes, and is clearly slower than the same without its variables; those it hangs on
    were found by halving."""
    guilty, clean = arms.guilty, arms.clean
    if isinstance(guilty, Guilty) and isinstance(clean, Arm) and isinstance(clean.trial, Trial):
        slow, fast = (t.world.busbw_gb_per_s("all_reduce") for t in (arms.control, clean.trial))
        if slow and fast:
            yield Finding(
                "environment-costs-bandwidth",
                Severity.WARN,
                f"your environment costs bandwidth: all_reduce reaches {slow:.1f} GB/s, but {fast:.1f} "
                f"GB/s without {_names(guilty)}",
                _proof(guilty),
                (_unset("Remove these variables, unless you know why they are set:", guilty.variables),),
                cause="env-conflict",
                status="likely" if guilty.why_not else "established",
            )


def switched_off_already(arms: Arms) -> Iterator[Finding]:
    """The user's own variables switch a transport off, so the bandwidth is that of the remaining ones.
    Harmless on cards without P2P."""
    taken = arms.control.world.set_by_environment
    off = [] if isinstance(taken, Gap) else [t for t in taken if _SWITCHED_OFF.fullmatch(t)]
    if off and not isinstance(arms.guilty, Guilty):
        again = _unset(
            "If you do not know why these variables are set, remove them, run this step again, and "
            "compare the bandwidth:",
            (t.partition("=")[0] for t in off),
        )
        yield Finding(
            "switched-off-already",
            Severity.NOTE,
            f"your environment switches a transport off: {', '.join(off)}",
            (Evidence(f"set by environment: {', '.join(off)}", "NCCL's log"),),
            (again,),
        )


def _loss(arms: Arms) -> Finding:
    bandwidth, via = arms.control.world.busbw_gb_per_s("all_reduce"), arms.control.world.transports
    evidence = (
        *(
            [Evidence(f"your unchanged environment uses {', '.join(sorted(via))}", "NCCL's log")]
            if not isinstance(via, Gap) and via
            else ()
        ),
        *(
            Evidence(f"cost of {_price(a, arms.control)}", "table below")
            for a in arms.arms
            if a.acts_on and outcome(a, arms.control) == "pass"
        ),
    )
    at = f" at {bandwidth:.1f} GB/s" if bandwidth else ""
    return Finding(
        "transports-pass",
        Severity.OK,
        f"the test passes in your unchanged environment{at}, so no transport has to be switched off",
        evidence,
    )


def _tried(arms: Arms, decision: Decision) -> str:
    """Before and after: the control beside the change that is proposed."""
    passed = {
        a.name: a.trial
        for a in (*arms.arms, arms.clean)
        if isinstance(a, Arm) and isinstance(a.trial, Trial) and a.trial.passed
    }
    change = decision.arm or ("clean" if isinstance(arms.guilty, Guilty) and not arms.guilty.why_not else "")
    if change not in passed:
        return ""
    rates = {name: trial.world.busbw_gb_per_s("all_reduce") or 0.0 for name, trial in passed.items()}
    fastest = max(rates, key=rates.__getitem__)
    what = (
        f"without {', '.join(arms.clean.env)}"
        if change == "clean" and isinstance(arms.clean, Arm)
        else f"with {change}"
    )
    slower = (
        f", {rates[fastest] / rates[change]:.1f} times slower than {fastest}"
        if 0 < rates[change] < rates[fastest]
        else ""
    )
    return f"with your settings: {_runs(arms.control)}; {what}: {_runs(passed[change])}" + (
        f", {rates[change]:.1f} GB/s{slower}" if rates[change] else ""
    )


def _runs(trial: Trial) -> str:
    return ", then ".join(world.ended for world in (trial.world, trial.again) if world is not None)
