"""What switching a transport off proves. An arm without effect is never a pass, and passing with
P2P off is never the fix."""

import dataclasses
import re
from collections.abc import Iterable

from nccl_runbook.causes.causes import NOT_SEEN, causes, explain, remedies, table
from nccl_runbook.core.facts import Gap, World
from nccl_runbook.core.findings import Evidence, Finding, Remedy, Severity
from nccl_runbook.worlds.facts import NOT_RUN, Arm, Arms, Guilty, Pairs, Trial
from nccl_runbook.worlds.judge import SEEN_ON_HARDWARE, Decision, Outcomes, decide, narrowed

# what only the log line of the variable itself proves: the transport goes by the same name with and without
_DID = {"wrong values": "gave wrong values", "lost": "was lost"}  # how a world ended, as a verb
_BY_LOG_LINE = ("NCCL_CUMEM_HOST_ENABLE", "NCCL_SOCKET_IFNAME")
_SWITCHED_OFF = re.compile(r"NCCL_(P2P|SHM|IB)_DISABLE=1|NCCL_P2P_LEVEL=(0|LOC)")


def used(world: World, prefixes: tuple[str, ...] = ("",)) -> int | None:
    """How much the world used of what begins with one of ``prefixes``, as NCCL's log counts; None without a
    log."""
    if isinstance(world.transports, Gap):
        return None
    return sum(n for name, n in {**world.transports, **world.algorithms}.items() if name.startswith(prefixes))


def acted(arm: Arm, control: Trial) -> bool | None:
    """Whether NCCL's log proves that the arm acted: what it removes was there in the control and is gone.

    None: no proof either way.
    """
    if isinstance(arm.trial, Gap):
        return None
    settings, acts_on = arm.trial.world.set_by_environment, tuple(arm.acts_on)
    if not acts_on or any(name in _BY_LOG_LINE for name in arm.env):
        return None if isinstance(settings, Gap) else all(f"{k}={v}" in settings for k, v in arm.env.items())
    before, after = used(control.world, acts_on), used(arm.trial.world, acts_on)
    if before is None or not used(arm.trial.world):
        return None
    if "NCCL_P2P_LEVEL" in arm.env:  # narrows: less of it, not none
        return after < before if used(control.world) else None
    # of a control that failed before it connected only what the arm left can be seen
    return not after and (before > 0 or not control.world.transports)


def outcome(arm: Arm, control: Trial) -> str:
    """ "pass", "no effect", "no proof", "not run", "passed 1 of 2", "passed 1 of 1" where it takes two, else
    how it failed."""
    if isinstance(arm.trial, Gap):
        return "not run"
    world, again = arm.trial.world, arm.trial.again
    if not world.passed:
        return "passed 1 of 2" if again is not None and again.passed else world.ended
    # beside a failing control a pass is run again, and timed
    proof, enough = acted(arm, control), control.passed or world.request.timed
    return ("pass" if enough else "passed 1 of 1") if proof else "no effect" if proof is False else "no proof"


def outcomes(arms: Arms | Gap) -> dict[str, str]:
    """The outcome of every arm by its name."""
    return {} if isinstance(arms, Gap) else {a.name: outcome(a, arms.control) for a in arms.arms}


def in_words(arms: Arms, message: bool) -> Outcomes:
    """The outcomes in the words of the decision. ``message``: whether the control's ranks said themselves
    what is wrong."""
    control, again, clean = arms.control, arms.control.again, arms.clean
    failed = "once of once" if again is None else "once of twice" if again.passed else control.world.ended
    return Outcomes(
        control="lost" if control.world.ended == "lost" else "pass" if control.passed else failed,
        after=_word(arms.control_after),
        arms={
            a.name: outcome(a, control)
            for a in arms.arms
            if not isinstance(a.trial, Gap) or a.trial.reason == "not-run"
        },
        clean="fail"
        if "no variable" in getattr(clean, "detail", "")
        else _word(clean if isinstance(clean, Gap) else clean.trial),
        settled=isinstance(arms.guilty, Guilty) and not arms.guilty.why_not,
        connected=bool(used(control.world)),
        message=message,
    )


def _word(trial: Trial | Gap) -> str:
    """How the control at the end, or *clean*, went."""
    return (
        "not run"
        if isinstance(trial, Gap) or trial.world.ended == "lost"
        else "pass"
        if trial.passed
        else "once of twice"
        if trial.again
        else "fail"
    )


def judge(arms: Arms | Gap, pairs: Pairs | Gap = NOT_RUN) -> list[Finding]:
    """Findings of step 04. The control decides how the arms are read; if it fails, ``pairs`` say between
    which GPUs."""
    if isinstance(arms, Gap):
        severity = Severity.SKIPPED if arms.reason == "unsupported" else Severity.UNKNOWN
        return [Finding("transports-not-run", severity, arms.detail or str(arms))]
    control = arms.control
    if arms.backend == "gloo" and control.passed:
        return _rehearsal(arms)
    fault = (
        None
        if control.passed
        else explain("control-fails", "your unchanged environment", control.world, control.again)
    )
    decision = decide(in_words(arms, fault is not None and fault.cause is not None))
    if fault is not None:
        found = dataclasses.replace(_control_fails(arms, decision, fault), tried=_tried(arms, decision))
        return [narrowed(found, pairs)]
    if decision.kind != "inconclusive":  # nothing is broken as it stands
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
        explain("rehearsal-fails", f"rehearsal on the CPU: {t.name}", t.world, t.again or same)
        for t, same in ran
        if isinstance(t, Trial) and not t.passed
    ]
    return failed or [
        Finding(
            "rehearsed",
            Severity.UNKNOWN,
            "no GPU was used, so NCCL's transports were not tested; the same ranks passed over Gloo",
            (Evidence("control and interface pinned to lo", "table below"),),
        )
    ]


def _fallback(arm: Arm, trial: Trial) -> Finding:
    """An arm that fails beside a control that passes is a fallback that would not work: worth a note, not an
    alarm."""
    fault = explain("fallback-fails", f"with {arm.name}", trial.world, trial.again)
    title = f"{fault.title} (your job does not use this: the control passed)"
    return Finding("fallback-fails", Severity.NOTE, title, fault.evidence)


def _environment_costs(arms: Arms) -> list[Finding]:
    """The environment passes, and is clearly slower than the same without its variables; those it hangs on
    were found by halving."""
    if (
        not isinstance(arms.guilty, Guilty)
        or not isinstance(arms.clean, Arm)
        or not isinstance(arms.clean.trial, Trial)
    ):
        return []
    slow, fast = (t.world.busbw_gb_per_s("all_reduce") for t in (arms.control, arms.clean.trial))
    if not slow or not fast:
        return []
    return [
        Finding(
            "environment-costs-bandwidth",
            Severity.WARN,
            f"your environment costs bandwidth: all_reduce {slow:.1f} GB/s, "
            f"and {fast:.1f} without {_names(arms.guilty)}",
            _proof(arms.guilty),
            (_unset("Remove it, unless somebody knows why it is set:", arms.guilty.variables),),
            "env-conflict",
            "likely" if arms.guilty.why_not else "established",
        )
    ]


def _unset(text: str, names: Iterable[str]) -> Remedy:
    return Remedy("your launcher", text, (f"unset {' '.join(names)}",))


def switched_off_already(arms: Arms) -> list[Finding]:
    """The user's own variables switch a transport off: the bandwidth is that of what is left. Harmless on
    cards without P2P."""
    taken = arms.control.world.set_by_environment
    off = [] if isinstance(taken, Gap) else [t for t in taken if _SWITCHED_OFF.fullmatch(t)]
    if not off or isinstance(arms.guilty, Guilty):
        return []
    again = _unset(
        "If nobody knows why it is set, remove it, run this step again, and compare the bandwidth:",
        (t.partition("=")[0] for t in off),
    )
    return [
        Finding(
            "switched-off-already",
            Severity.NOTE,
            f"your environment switches a transport off: {', '.join(off)}",
            (Evidence(f"set by environment: {', '.join(off)}", "NCCL's log"),),
            (again,),
        )
    ]


def _price(arm: Arm, control: Trial) -> str:
    before, after = control.world.busbw_gb_per_s("all_reduce"), arm.trial.world.busbw_gb_per_s("all_reduce")
    slower = f", {before / after:.1f} times slower than the control" if before and after else ""
    return f"{arm.name}: {after:.1f} GB/s{slower}" if after else f"{arm.name}: passed"


def _loss(arms: Arms) -> Finding:
    bandwidth, via = arms.control.world.busbw_gb_per_s("all_reduce"), arms.control.world.transports
    evidence = (
        *(
            [Evidence(f"control via {', '.join(sorted(via))}", "NCCL's log")]
            if not isinstance(via, Gap) and via
            else ()
        ),
        *(
            Evidence(f"price of {_price(a, arms.control)}", "table below")
            for a in arms.arms
            if a.acts_on and outcome(a, arms.control) == "pass"
        ),
    )
    at = f" at {bandwidth:.1f} GB/s" if bandwidth else ""
    return Finding(
        "transports-pass",
        Severity.OK,
        f"your environment passes unchanged{at}: no transport has to be switched off",
        evidence,
    )


def _names(guilty: Guilty) -> str:
    return ", ".join(f"{k}={v}" for k, v in guilty.variables.items())


def _proof(guilty: Guilty) -> tuple[Evidence, ...]:
    """How the variables were found."""
    n = len(guilty.variables)
    how = (
        f"undecided after {guilty.asked} tests: {guilty.why_not}"
        if guilty.why_not
        else (f"it comes with {'it' if n == 1 else 'them'} alone and goes with the other {guilty.among - n}")
    )
    return (
        Evidence(
            f"{_names(guilty)}: {n} of {guilty.among} variables, {how}",
            "halving, each test in fresh processes",
        ),
    )


def _control_fails(arms: Arms, decision: Decision, fault: Finding) -> Finding:
    """The finding for a control that fails, with what the arms add to it."""
    tried = {
        a.name: Evidence(f"{a.name}: {outcome(a, arms.control)}", "table below")
        for a in arms.arms
        if isinstance(a.trial, Trial)
    }
    decisive = [tried.pop(decision.arm)] if decision.arm in tried else []
    evidence = (
        *(_proof(arms.guilty) if isinstance(arms.guilty, Guilty) else ()),
        *decisive,
        *fault.evidence,
        *tried.values(),
        *[NOT_SEEN] * (decision.kind not in {*SEEN_ON_HARDWARE, "inconclusive", "not-the-transport"}),
    )
    if decision.kind == "variable":
        return _variable(arms, decision, fault, evidence)
    cure = next((a for a in arms.arms if a.name == decision.arm), None)
    if decision.kind == "explained" or cure is None:
        return _undecided(arms, decision, fault, evidence, cure)
    title = (
        f"the test {_DID.get(arms.control.world.ended, arms.control.world.ended)} with your settings, "
        f"and passed with {cure.name}"
        f"{'; no single transport' * (decision.kind == 'sockets')}"
    )
    remedy = (*remedies(causes().get(decision.cause or ""), decision.status), _meanwhile(cure, arms))
    return Finding(
        "transport-at-fault", fault.severity, title, evidence, remedy, decision.cause, decision.status
    )


def _tried(arms: Arms, decision: Decision) -> str:
    """Before and after: the control beside the change that is proposed."""
    passed = {
        a.name: a.trial
        for a in (*arms.arms, arms.clean)
        if isinstance(a, Arm) and isinstance(a.trial, Trial) and a.trial.passed
    }
    change = decision.arm or "clean" * (isinstance(arms.guilty, Guilty) and not arms.guilty.why_not)
    if change not in passed:
        return ""
    rates = {name: trial.world.busbw_gb_per_s("all_reduce") or 0.0 for name, trial in passed.items()}
    fastest = max(rates, key=rates.__getitem__)
    what = f"without {', '.join(arms.clean.env)}" if change == "clean" else f"with {change}"
    slower = (
        f", {rates[fastest] / rates[change]:.1f} times slower than {fastest}"
        if 0 < rates[change] < rates[fastest]
        else ""
    )
    return (
        f"with your settings: {_runs(arms.control)}; {what}: {_runs(passed[change])}"
        + f", {rates[change]:.1f} GB/s{slower}" * bool(rates[change])
    )


def _runs(trial: Trial) -> str:
    return ", then ".join(world.ended for world in (trial.world, trial.again) if world is not None)


def _undecided(
    arms: Arms, decision: Decision, fault: Finding, evidence: tuple[Evidence, ...], cure: Arm | None
) -> Finding:
    """The ranks reported it themselves, it is not the transport, or nothing can be concluded."""
    if decision.kind == "explained":
        settled = isinstance(arms.guilty, Guilty) and not arms.guilty.why_not
        return dataclasses.replace(
            fault,
            title=f"{fault.title}; it passes without {_names(arms.guilty)}" if settled else fault.title,
            evidence=evidence,
            remedy=(*fault.remedy, *((_meanwhile(cure, arms),) if cure else ())),
        )
    words = (
        ""
        if "intermittent" in decision.why
        else {"not-the-transport": "not the transport: "}.get(decision.kind, "inconclusive: ")
    )
    return dataclasses.replace(fault, evidence=(*evidence, Evidence(f"{words}{decision.why}", "table below")))


def _meanwhile(arm: Arm, arms: Arms) -> Remedy:
    # lo reaches no other host
    here = ", on this host only:" if arm.env.get("NCCL_SOCKET_IFNAME") == "lo" else ":"
    return Remedy(
        "you",
        f"Workaround until it is fixed{here} run with {arm.name} ({_price(arm, arms.control)}):",
        tuple(f"export {k}={v}" for k, v in arm.env.items()),
    )


def _variable(arms: Arms, decision: Decision, fault: Finding, evidence: tuple[Evidence, ...]) -> Finding:
    """A variable of the environment is to blame: proven by halving, or at least that the same passes without
    all of them."""
    guilty, settled = (
        arms.guilty if isinstance(arms.guilty, Guilty) else Guilty({}, 0, 0, "not tried"),
        decision.status == "established",
    )
    # confounded: others do it too
    names = arms.clean.env if guilty.why_not in ("confounded", "not tried") else guilty.variables
    named = [
        cause
        for k in names
        for pattern, cause in table("environment/environment")["causes"].items()
        if re.fullmatch(pattern, k)
    ]
    cause = causes()[named[0] if named and settled else decision.cause]
    left = (
        f"{guilty.why_not}, {len(names)} variables left: {', '.join(names)}"
        if "budget" in guilty.why_not
        else ""
    )
    which = (
        _names(guilty) if settled else f"its variables ({left or f'which of {len(names)}: {guilty.why_not}'})"
    )
    unset = _unset(
        "Remove it, or set a value that works:"
        if settled
        else "Which of these is needed is not proven. Without all of them it passes:",
        names,
    )
    return Finding(
        "variable-at-fault",
        fault.severity,
        f"the test {_DID.get(arms.control.world.ended, arms.control.world.ended)} with your settings, "
        "and passed without "
        f"{which}",
        evidence,
        (unset,),
        cause.id,
        decision.status,
    )
